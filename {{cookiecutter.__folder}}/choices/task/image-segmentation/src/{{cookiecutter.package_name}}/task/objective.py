"""What the training aims at: the loss that it minimizes, and what is measured on the validation set."""

from __future__ import annotations

import torch
from ignite.metrics import Accuracy, ConfusionMatrix, Metric, mIoU
from torch import Tensor, nn

from .data import Batch, Data

# Which metric chooses the best checkpoint, or "loss"; and whether more of it is better.
SCORE = "miou"
HIGHER_IS_BETTER = True
LOSS_LABEL = "cross-entropy (nats per pixel)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return scores (batch, classes, height, width) and masks (batch, height, width)."""
    images, masks = batch
    return model(images), masks


def loss(scores: Tensor, masks: Tensor) -> Tensor:
    """Return the mean cross-entropy of all pixels of the batch, in nats."""
    # On some devices, cross_entropy would add the pixels up in an order that varies.
    return nn.functional.cross_entropy(scores, masks, reduction="none").mean()


def metrics(device: torch.device, data: Data) -> dict[str, Metric]:
    """Return the intersection over union, averaged over the classes, and the part of the pixels that are right.

    Both are computed from the pixels of all images together; a class that no image holds would count as 0.
    """
    return {"miou": mIoU(ConfusionMatrix(len(data.classes), device=device)), "accuracy": Accuracy(device=device)}
