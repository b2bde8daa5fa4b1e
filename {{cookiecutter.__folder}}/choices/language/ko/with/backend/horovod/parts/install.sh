scripts/install_horovod.sh  # 설치된 torch에 맞추어 Horovod를 빌드: 한 번, 몇 분
