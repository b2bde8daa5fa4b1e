"""The models: a small convolutional network and a small ResNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from images (batch, *data.shape) to logits (batch, len(data.classes))."""
    create = {"cnn": create_cnn, "resnet": create_resnet}[settings.model]
    return create(settings.width, data.shape[0], len(data.classes))


def create_cnn(width: int, channels: int, num_classes: int) -> nn.Module:
    """Return a network that gives the same results on any number of processes.

    GroupNorm does not depend on the other samples of a batch. And SiLU is smooth: at the kink of a ReLU, rounding would
    decide the gradient, and equal runs would soon differ in the fourth digit.
    """
    return nn.Sequential(
        _block(channels, width),
        _block(width, 2 * width),
        nn.AvgPool2d(2),
        _block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes),
    )


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
    )


def create_resnet(width: int, channels: int, num_classes: int) -> nn.Module:
    """Return a ResNet of three residual blocks; the last two halve the resolution and double the width."""
    return nn.Sequential(
        _convolution(channels, width),
        nn.ReLU(),
        Residual(width, width, stride=1),
        Residual(width, 2 * width, stride=2),
        Residual(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )


class Residual(nn.Module):
    """Two convolutions and a shortcut (He et al., "Deep residual learning for image recognition", 2016)."""

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
