"""A smooth network: at a kink, two equal trainings would soon differ in the fourth digit."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


class Network(nn.Module):
    def __init__(self, width: int, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        layers += [nn.BatchNorm1d(width)] if batch_norm else []
        layers += [nn.Dropout(dropout)] if dropout else []
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        # As a network does that takes each batch to be contiguous.
        x = x.view(-1).view(-1, 3)
        result: Any = self.head(self.blocks(x))
        return result.squeeze(1)  # type: ignore[no-any-return]


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    return Network(settings.width, settings.dropout, settings.batch_norm)
