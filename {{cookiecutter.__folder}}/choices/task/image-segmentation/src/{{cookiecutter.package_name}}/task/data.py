"""Scenes composed of real handwritten digits on a synthetic background, so that the class of each pixel is known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .settings import CELL, TaskConfig

Batch = tuple[Tensor, Tensor]

# In the order of their numbers in a mask.
CLASSES = ("background", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")


class Scenes:
    """Images (scenes, 1, size, size), float32, and their masks (scenes, size, size), int64."""

    def __init__(self, images: Tensor, masks: Tensor) -> None:
        self.images, self.masks = images, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return images (batch, 1, size, size) and the class of each pixel (batch, size, size)."""
        chosen = torch.tensor(indices, dtype=torch.int64)
        return self.images[chosen], self.masks[chosen]


class Data(NamedTuple):
    """Training and validation set, and what the model needs to know about them."""

    train: Scenes
    val: Scenes
    title: str
    channels: int
    classes: tuple[str, ...]


def load(settings: TaskConfig) -> Data:
    """Return the scenes, the same in every run. No digit is in both sets."""
    table = np.random.default_rng(0).permutation(_digits())
    cut = len(table) * 4 // 5
    train = _scenes(table[:cut], settings.train_scenes, settings, seed=1)
    val = _scenes(table[cut:], settings.val_scenes, settings, seed=2)
    return Data(train, val, "scenes of digits", channels=1, classes=CLASSES)


def _digits() -> npt.NDArray[np.float32]:
    # The file of sklearn.datasets.load_digits, whose import takes seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml requires scikit-learn"
    file = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(file, np.float32, delimiter=",")


def _scenes(table: npt.NDArray[np.float32], count: int, settings: TaskConfig, seed: int) -> Scenes:
    """Return scenes of the digits in ``table``, whose rows are 64 pixels from 0 to 16 and a label.

    The background is a gradient of random direction. Each digit has a random brightness and a random place in a cell of
    its own. A pixel belongs to a digit if at least half of it is ink.
    """
    random = np.random.default_rng(seed)
    size, shape, cells = settings.size, (count, settings.digits), settings.size // CELL
    slopes, ramp = random.uniform(-0.2, 0.2, (2, count, 1, 1)), np.linspace(-1, 1, size)
    images = slopes[0] * ramp[:, None] + slopes[1] * ramp
    masks = np.zeros((count, size, size), np.int64)
    digits = table[random.integers(len(table), size=shape)]
    ink, labels = digits[..., :64].reshape(*shape, 8, 8) / 16, digits[..., 64, None, None].astype(np.int64)
    brightness = random.uniform(0.4, 1, (*shape, 1, 1))
    chosen = random.random((count, cells**2)).argsort(axis=1)[:, : settings.digits]
    corners = size // cells * np.stack(np.divmod(chosen, cells)) + random.integers(size // cells - 7, size=(2, *shape))
    # The pixels of each digit, (count, digits, 8, 8).
    rows, columns = corners[..., None] + np.arange(8)
    place = np.arange(count)[:, None, None, None], rows[..., :, None], columns[..., None, :]
    images[place] += ink * (brightness - images[place])
    masks[place] = (ink >= 0.5) * (labels + 1)
    images += random.normal(0, settings.noise, images.shape)
    return Scenes(torch.from_numpy(images.astype(np.float32))[:, None], torch.from_numpy(masks))
