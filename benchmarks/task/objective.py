"""The loss and the metric of the benchmark."""

from __future__ import annotations

from typing import Any

import torch
from ignite.metrics import Accuracy, Metric
from torch import Tensor, nn

SCORE = "accuracy"
HIGHER_IS_BETTER = True


def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return scores and targets."""
    inputs, targets = batch
    return model(inputs), targets


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return nn.functional.cross_entropy(scores, targets)


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the part that is right."""
    return {"accuracy": Accuracy(device=device)}
