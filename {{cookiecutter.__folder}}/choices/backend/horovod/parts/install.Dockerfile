RUN scripts/install_horovod.sh
