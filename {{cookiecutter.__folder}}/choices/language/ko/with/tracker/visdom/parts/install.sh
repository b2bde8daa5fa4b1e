scripts/install_visdom.sh  # wheel이 없는 Visdom을 빌드
