"""The loss to minimize, and the metrics of the validation set."""

from __future__ import annotations

import torch
from ignite.metrics import Accuracy, Metric
from torch import Tensor, nn

from .data import Batch

# The metric that chooses the best checkpoint, or "loss".
SCORE = "accuracy"
HIGHER_IS_BETTER = True
LOSS_LABEL = "cross-entropy (nats)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits (batch, classes) and labels (batch,)."""
    images, labels = batch
    return model(images), labels


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the batch, in nats."""
    return nn.functional.cross_entropy(logits, labels)


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the metrics of an evaluation by name."""
    return {"accuracy": Accuracy(device=device)}
