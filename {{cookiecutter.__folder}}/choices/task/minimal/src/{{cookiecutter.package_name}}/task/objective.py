"""The loss to minimize, and the metrics of the validation set."""

from __future__ import annotations

from typing import Any

import torch
from ignite.metrics import MeanAbsoluteError, Metric
from torch import Tensor, nn

# The metric that chooses the best checkpoint, or "loss".
SCORE = "error"
HIGHER_IS_BETTER = False
LOSS_LABEL = "mean squared error"


def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return outputs (batch,) and targets (batch,)."""
    inputs, targets = batch
    return model(inputs), targets


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the batch."""
    return nn.functional.mse_loss(outputs, targets)


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the metrics of an evaluation by name: any ignite metric that is one number."""
    return {"error": MeanAbsoluteError(device=device)}
