"""The model: a small U-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from .data import Data
from .settings import TaskConfig


class UNet(nn.Module):
    """A U-Net of three resolutions (Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation", 2015).

    It gives the same results on any number of processes: GroupNorm does not depend on the other samples of a batch, and
    SiLU is smooth.
    """

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.fine = _block(channels, width)
        self.middle = _block(width, 2 * width)
        self.coarse = _block(2 * width, 4 * width)
        self.up_middle = nn.ConvTranspose2d(4 * width, 2 * width, kernel_size=2, stride=2)
        self.join_middle = _block(4 * width, 2 * width)
        self.up_fine = nn.ConvTranspose2d(2 * width, width, kernel_size=2, stride=2)
        self.join_fine = _block(2 * width, width)
        self.logits = nn.Conv2d(width, num_classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return (batch, num_classes, height, width) for (batch, channels, height, width), sides divisible by 4."""
        fine = self.fine(images)
        middle = self.middle(avg_pool2d(fine, 2))
        coarse = self.coarse(avg_pool2d(middle, 2))
        middle = self.join_middle(torch.cat([middle, self.up_middle(coarse)], dim=1))
        fine = self.join_fine(torch.cat([fine, self.up_fine(middle)], dim=1))
        logits: Tensor = self.logits(fine)
        return logits


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        convolution = nn.Conv2d(channels, channels_out, kernel_size=3, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(8, channels_out), nn.SiLU()]
    return nn.Sequential(*layers)


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from images (batch, data.channels, ...) to logits (batch, len(data.classes), ...)."""
    return UNet(data.channels, len(data.classes), settings.width)
