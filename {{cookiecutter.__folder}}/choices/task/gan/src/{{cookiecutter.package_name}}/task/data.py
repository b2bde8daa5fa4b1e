"""The digits of scikit-learn, each with the noise that a fake is made of."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..randomness import normal
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]


class Images:
    """Images (samples, 1, 8, 8) between -1 and 1, in memory."""

    def __init__(self, images: Tensor, noise: int) -> None:
        self.images, self.noise = images, noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int], seeds: Tensor) -> Batch:
        """Return images (batch, 1, 8, 8) and noise (batch, noise).

        The noise follows from the seeds (batch,), one for each image: drawn in the step, it would depend on the rank.
        """
        return self.images[torch.tensor(indices, dtype=torch.int64)], normal(seeds, self.noise)


class Data(NamedTuple):
    """The two sets of images."""

    train: Images
    val: Images
    title: str


def load(settings: TaskConfig) -> Data:
    """Return the digits, a fifth of them for validation."""
    # The file behind load_digits of sklearn.datasets, whose import brings all of scipy: seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml asks for scikit-learn"
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    images = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 8 - 1
    # The file groups writers: shuffle once, the same way in every run, before cutting off the last fifth.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    cut = len(images) * 4 // 5
    return Data(Images(images[order[:cut]], settings.noise), Images(images[order[cut:]], settings.noise), "digits")
