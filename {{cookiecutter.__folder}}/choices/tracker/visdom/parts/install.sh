scripts/install_visdom.sh  # builds Visdom, which has no wheels
