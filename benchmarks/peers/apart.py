"""What the same processes reach if each trains a model of its own: they meet once in an epoch, and exchange nothing else."""

from limit import main

if __name__ == "__main__":
    main(exchanges=False)
