"""The digits of scikit-learn, each with the noise for one generated image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]


class Images:
    """Images in memory, (samples, 1, 8, 8), with values from -1 to 1."""

    def __init__(self, images: Tensor, noise: int) -> None:
        self.images, self.noise = images, noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int], seeds: Tensor) -> Batch:
        """Return images (batch, 1, 8, 8) and noise (batch, noise).

        Args:
            seeds: one for each image, (batch,), which determines its noise on any number of processes.
        """
        generator = torch.Generator()
        noise = [torch.randn(self.noise, generator=generator.manual_seed(seed)) for seed in seeds.tolist()]
        return self.images[torch.tensor(indices, dtype=torch.int64)], torch.stack(noise)


class Data(NamedTuple):
    """Training and validation set."""

    train: Images
    val: Images
    title: str


def load(settings: TaskConfig) -> Data:
    """Return the digits, with a fifth of them for validation."""
    # The file of sklearn.datasets.load_digits, whose import takes seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml requires scikit-learn"
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    images = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 8 - 1
    # The file is sorted by writer: shuffle it, always in the same way, before cutting off the last fifth.
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    cut = len(images) * 4 // 5
    return Data(Images(images[:cut], settings.noise), Images(images[cut:], settings.noise), "digits")
