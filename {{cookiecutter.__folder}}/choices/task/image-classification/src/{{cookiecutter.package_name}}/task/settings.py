"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaskConfig:
    """Which images to classify, and with which network."""

    dataset: Literal["digits", "cifar10", "folder", "synthetic"] = "digits"
    """digits comes with scikit-learn; cifar10 is downloaded; folder has train/CLASS/* and val/CLASS/* images; synthetic is
    random, for benchmarks"""
    root: str = "data"
    """folder of the images, or of downloads"""
    image_size: int = 32
    """height and width in pixels, for folder and synthetic"""
    synthetic_size: int = 8192
    """training samples of synthetic"""
    augment: Literal["none", "shift", "mirror"] = "none"
    """shift moves each training image by up to an eighth of its size; mirror also mirrors every other one"""
    model: Literal["cnn", "resnet"] = "cnn"
    """cnn gives the same results on any number of processes; resnet uses BatchNorm, which does not"""
    width: int = 32
    """channels of the first convolution; later ones have more"""

    def __post_init__(self) -> None:
        for name, value in (("image_size", self.image_size), ("synthetic_size", self.synthetic_size)):
            if value < 1:
                raise ValueError(f"task.{name} must be at least 1, not {value}")
        if self.width < 8 or self.width % 8:
            raise ValueError(f"task.width must be a multiple of 8, not {self.width}")
