"""The data: synthetic points of a surface, to be replaced by yours."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset

from .settings import TaskConfig


class Data(NamedTuple):
    """Training and validation set, and what the model needs to know about them."""

    train: Any
    val: Any
    title: str
    """name in the log and in plots"""


def load(settings: TaskConfig) -> Data:
    """Return the data, the same in every process."""
    # Replace it by any datasets with len() and [index].
    inputs = torch.rand(1500, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    targets = inputs[:, 0] * inputs[:, 1]
    return Data(TensorDataset(inputs[300:], targets[300:]), TensorDataset(inputs[:300], targets[:300]), "a surface")
