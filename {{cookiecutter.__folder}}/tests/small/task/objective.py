"""The squared error, and as many metrics of every kind as a test asks for."""

from __future__ import annotations

import itertools
import math
import os
import signal

import torch
from ignite.metrics import MeanAbsoluteError, Metric, MetricsLambda, Precision
from ignite.metrics.regression.median_absolute_error import MedianAbsoluteError
from torch import Tensor, nn

from .data import Sample

SCORE = "error"
HIGHER_IS_BETTER = False
LOSS_LABEL = "mean squared error"


steps = itertools.count(1)


def forward(model: nn.Module, batch: Sample) -> tuple[Tensor, Tensor]:
    if model.training and next(steps) == int(os.environ.get("SMALL_DIES_IN_STEP", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return model(batch["x"]), batch["y"]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def as_classes(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Turn both into two classes each: positive or not."""
    outputs, targets = pair
    return torch.stack([-outputs, outputs], dim=1), (targets > 0).long()


class LargestError(Metric):
    """As somebody writes it who does not think of other processes."""

    def reset(self) -> None:
        self.largest = 0.0

    def update(self, output: tuple[Tensor, Tensor]) -> None:
        outputs, targets = output
        self.largest = max(self.largest, float((outputs - targets).abs().max()))

    def compute(self) -> float:
        return self.largest


class Failing(MeanAbsoluteError):
    def compute(self) -> float:
        raise ZeroDivisionError("no sample is positive")


def metrics(device: torch.device) -> dict[str, Metric]:
    table: dict[str, Metric] = {"error": MeanAbsoluteError(device=device)}
    for name in os.environ.get("SMALL_METRICS", "").split():
        if name == "median":
            # It keeps all samples until it is computed.
            table[name] = MedianAbsoluteError(device=device)
        elif name == "own":
            table[name] = LargestError(device=device)
        elif name == "double":
            table[name] = MetricsLambda(lambda value: 2 * value, MedianAbsoluteError(device=device))
        elif name == "precision":
            # Before it has seen a sample, it does not know the number of classes.
            table[name] = Precision(average=True, device=device, output_transform=as_classes)
        elif name == "nothing":
            table[name] = MetricsLambda(lambda value: value * math.nan, MeanAbsoluteError(device=device))
        elif name == "failing":
            table[name] = Failing(device=device)
        elif name == "each":
            table[name] = Precision(average=False, device=device, output_transform=as_classes)
    return table
