"""The models of the benchmark."""

from __future__ import annotations

import copy
import math

from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from inputs (batch, *data.shape) to scores (batch, 10), or (batch, 256, tokens)."""
    width = settings.width
    if settings.model == "bigram":
        return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 256), Transpose())
    if settings.model == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(data.shape), width), nn.ReLU(), nn.Linear(width, 10)
        )
    if settings.model == "deep":
        return Deep(math.prod(data.shape), width)
    if settings.model == "mnist":
        # 1.2 million weights, nearly all of them in the first linear layer: that of PyTorch's first example.
        layers = [
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ]
        return nn.Sequential(*layers, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(
        block(data.shape[0], width),
        block(width, 2 * width),
        nn.AvgPool2d(2),
        block(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


class Deep(nn.Module):
    """Eight blocks, each of which keeps more than what goes in."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, 10)
        layers = (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Tanh())
        self.blocks = nn.Sequential(*(nn.Sequential(*map(copy.deepcopy, layers)) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (batch, 10)."""
        result: Tensor = self.last(self.blocks(self.first(x.flatten(1))))
        return result


class Transpose(nn.Module):
    """Puts the scores where ``cross_entropy`` looks for them."""

    def forward(self, scores: Tensor) -> Tensor:
        """Return (batch, scores, tokens)."""
        return scores.transpose(1, 2)


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return a convolution, normalized by groups."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
    )
