"""The settings of the task, and what it needs of a machine; read before torch is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..checks import Check

if TYPE_CHECKING:
    from ..config import Config

NEED_TORCHVISION = ("cifar10", "folder")


@dataclass(frozen=True)
class TaskConfig:
    """What is learned, from which images, by how large a network."""

    dataset: Literal["digits", "cifar10", "folder", "synthetic"] = "digits"
    """digits comes with scikit-learn; cifar10 is downloaded; folder holds train/CLASS/* and val/CLASS/* images;
    synthetic is random, for benchmarks"""
    root: str = "data"
    """folder of the images, or where downloads are kept"""
    image_size: int = 32
    """pixels along one side, for folder and synthetic"""
    synthetic_size: int = 8192
    """training samples of synthetic"""
    augment: Literal["none", "shift", "mirror"] = "none"
    """shift moves each training image by up to an eighth of its size; mirror also mirrors every other one"""
    model: Literal["cnn", "resnet"] = "cnn"
    """cnn learns the same on every world size; resnet has batch normalization"""
    width: int = 32
    """channels of the first convolution; the later ones have more"""

    def __post_init__(self) -> None:
        for name, value in (("image_size", self.image_size), ("synthetic_size", self.synthetic_size)):
            if value < 1:
                raise ValueError(f"task.{name} must be at least 1, not {value}")
        if self.width < 8 or self.width % 8:
            raise ValueError(f"task.width must be a multiple of 8, not {self.width}")


def requirements(config: Config) -> Iterator[Check]:
    """Yield what the machine must have for this task, as far as it can be told without importing torch."""
    dataset = config.task.dataset
    missing = dataset in NEED_TORCHVISION and importlib.util.find_spec("torchvision") is None
    found = f"task.dataset {dataset} needs torchvision" if missing else dataset
    yield Check("data", not missing, found, "pip install -e '.[vision]'")
