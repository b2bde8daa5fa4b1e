"""A smooth network: at a kink, two equal trainings would soon differ in the fourth digit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


class Network(nn.Module):
    mask: Tensor | None
    edges: Tensor | None

    def __init__(self, width: int, dropout: float, batch_norm: bool, expert: bool, edges: bool, frozen: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        layers += [nn.BatchNorm1d(width)] if batch_norm else []
        layers += [nn.Dropout(dropout)] if dropout else []
        self.blocks = nn.Sequential(*layers)
        self.expert = nn.Linear(width, width) if expert else None
        self.head = nn.Linear(width, 1)
        # As attention has one: of a type that not every backend carries, and in no checkpoint.
        if batch_norm:
            self.register_buffer("mask", torch.ones(width, dtype=torch.bool), persistent=False)
        else:
            # No buffer that is None: older versions of torch export no such model.
            self.mask = None
        if edges:
            self.register_buffer("edges", torch.eye(width).to_sparse())
        else:
            self.edges = None
        if frozen:
            self.blocks[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        # As a network does that takes each batch to be contiguous.
        x = x.view(-1).view(-1, 3)
        hidden = self.blocks(x)
        if self.mask is not None:
            hidden = hidden * self.mask
        if self.edges is not None:
            hidden = torch.sparse.mm(self.edges, hidden.T).T
        if self.expert and self.training and torch.rand(()) < 1 / 3:
            hidden = hidden + self.expert(hidden)
        result: Any = self.head(hidden)
        return result.squeeze(1)  # type: ignore[no-any-return]


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    return Network(
        settings.width, settings.dropout, settings.batch_norm, settings.expert, settings.edges, settings.frozen
    )
