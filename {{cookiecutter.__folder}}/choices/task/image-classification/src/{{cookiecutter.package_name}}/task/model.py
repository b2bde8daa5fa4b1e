"""The model: a small convolutional network."""

from __future__ import annotations

from torch import nn

from .data import Data
from .settings import TaskConfig


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from images (batch, *data.shape) to scores (batch, data.num_classes).

    It normalises by groups of channels, not over the batch: what it computes for a sample does not depend on the
    other samples of its process, so the result is the same on every world size. And it is smooth: at the kink of a ReLU
    the rounding of a sum decides which way a gradient goes, and two equal trainings soon differ in the fourth digit.
    """
    width = settings.width
    return nn.Sequential(
        _block(data.shape[0], width),
        _block(width, 2 * width),
        nn.AvgPool2d(2),
        _block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, data.num_classes),
    )


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
    )
