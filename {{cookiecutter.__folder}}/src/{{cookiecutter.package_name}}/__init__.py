"""Data-parallel training with PyTorch-Ignite: one source for every device, backend and launcher."""
