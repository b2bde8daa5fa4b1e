"""The model: a small convolutional network."""

from __future__ import annotations

from torch import Tensor, nn

from .config import ModelConfig


def create_model(config: ModelConfig, shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return a network from images (batch, *shape) to scores (batch, num_classes).

    It normalises by groups of channels, not over the batch: what it computes for a sample does not depend on the
    other samples of its process, so the result is the same on every world size. And it is smooth: at the kink of a ReLU
    the rounding of a sum decides which way a gradient goes, and two equal trainings soon differ in the fourth digit.
    """
    width = config.width
    return nn.Sequential(
        _block(shape[0], width),
        _block(width, 2 * width),
        nn.AvgPool2d(2),
        _block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes),
    )


def loss_function(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of scores (batch, classes) for labels (batch,); 0 for an empty batch."""
    return nn.functional.cross_entropy(scores, labels, reduction="sum") / max(len(labels), 1)


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
    )
