"""The loss to minimize, and the metrics of the validation set."""

from __future__ import annotations

import torch
from ignite.metrics import MeanAbsoluteError, Metric, RootMeanSquaredError
from ignite.metrics.regression.r2_score import R2Score
from torch import Tensor, nn

from .data import Batch

# The metric that chooses the best checkpoint, or "loss".
SCORE = "mae"
HIGHER_IS_BETTER = False
LOSS_LABEL = "mean squared error"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return predictions (batch,) and targets (batch,)."""
    inputs, targets = batch
    return model(inputs), targets


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of the batch."""
    return nn.functional.mse_loss(outputs, targets)


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the mean absolute and root mean squared error, in the unit of the target, and R squared."""
    return {
        "mae": MeanAbsoluteError(device=device),
        "rmse": RootMeanSquaredError(device=device),
        "r2": R2Score(device=device),
    }
