tensorboard --logdir runs
