scripts/install_horovod.sh  # builds Horovod against the installed torch: a few minutes, once
