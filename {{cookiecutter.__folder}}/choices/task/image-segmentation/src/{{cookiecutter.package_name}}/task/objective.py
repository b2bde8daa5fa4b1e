"""The loss to minimize, and the metrics of the validation set."""

from __future__ import annotations

import torch
from ignite.metrics import Accuracy, ConfusionMatrix, Metric, mIoU
from torch import Tensor, nn

from .data import Batch, Data

# The metric that chooses the best checkpoint, or "loss".
SCORE = "miou"
HIGHER_IS_BETTER = True
LOSS_LABEL = "cross-entropy (nats per pixel)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits (batch, classes, height, width) and masks (batch, height, width)."""
    images, masks = batch
    return model(images), masks


def loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean cross-entropy of all pixels of the batch, in nats."""
    # On some devices, its own mean over pixels is not deterministic.
    return nn.functional.cross_entropy(logits, masks, reduction="none").mean()


def metrics(device: torch.device, data: Data) -> dict[str, Metric]:
    """Return the mean intersection over union of the classes, and the accuracy, both over the pixels of all images.

    A class that is in no image counts as 0.
    """
    return {"miou": mIoU(ConfusionMatrix(len(data.classes), device=device)), "accuracy": Accuracy(device=device)}
