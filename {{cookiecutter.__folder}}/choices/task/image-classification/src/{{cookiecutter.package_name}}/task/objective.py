"""What the training aims at: the loss that it minimizes, and what is measured on the validation set."""

from __future__ import annotations

import torch
from ignite.metrics import Accuracy, Metric
from torch import Tensor, nn

from .data import Batch

# Which metric chooses the best checkpoint, or "loss"; and whether more of it is better.
SCORE = "accuracy"
HIGHER_IS_BETTER = True
LOSS_LABEL = "cross-entropy (nats)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return scores (batch, classes) and labels (batch,)."""
    images, labels = batch
    return model(images), labels


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the batch, in nats."""
    return nn.functional.cross_entropy(scores, labels)


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return what is measured at every evaluation, each under the name that it is recorded by."""
    return {"accuracy": Accuracy(device=device)}
