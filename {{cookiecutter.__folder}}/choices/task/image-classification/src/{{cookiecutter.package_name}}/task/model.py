"""The models: a small convolutional network, and a small ResNet with batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from images (batch, *data.shape) to scores (batch, len(data.classes))."""
    return {"cnn": create_cnn, "resnet": create_resnet}[settings.model](settings.width, data)


def create_cnn(width: int, data: Data) -> nn.Module:
    """Return a network that learns the same on every world size.

    It normalizes by groups of channels, not over the batch: what it computes for a sample does not depend on the
    other samples of its process. And it is smooth: at the kink of a ReLU the rounding of a sum decides which way a
    gradient goes, and two equal trainings soon differ in the fourth digit.
    """
    return nn.Sequential(
        _block(data.shape[0], width),
        _block(width, 2 * width),
        nn.AvgPool2d(2),
        _block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, len(data.classes)),
    )


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
    )


def create_resnet(width: int, data: Data) -> nn.Module:
    """Return a ResNet of three residual blocks, each but the first at half the resolution and twice the width."""
    return nn.Sequential(
        _convolution(data.shape[0], width),
        nn.ReLU(),
        Residual(width, width, stride=1),
        Residual(width, 2 * width, stride=2),
        Residual(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, len(data.classes)),
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut, of He et al., "Deep residual learning for image recognition" (2016)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            _convolution(channels_in, channels_out, stride), nn.ReLU(), _convolution(channels_out, channels_out)
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(channels_in, channels_out, stride, size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return (batch, channels_out, height / stride, width / stride)."""
        return torch.relu(self.path(images) + self.shortcut(images))


def _convolution(channels_in: int, channels_out: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )
