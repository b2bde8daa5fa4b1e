"""Points of a smooth function, in every form in which a dataset may answer."""

from __future__ import annotations

import os
import random
import signal
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from .settings import TaskConfig

Sample = dict[str, Tensor]


class Points:
    """One sample at a time, as torch's own datasets."""

    def __init__(self, size: int, seed: int, noise: float = 0.0) -> None:
        self.noise = noise
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(size, 3, generator=generator) * 2 - 1
        self.y = torch.sin(2 * self.x[:, 0]) + self.x[:, 1]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Sample:
        assert type(index) is int
        if str(index) == os.environ.get("SMALL_LACKS_SAMPLE"):
            raise import_module("..errors", __package__).UsageError(f"sample {index} is damaged: fix it")
        if get_worker_info() and os.environ.get("SMALL_KILLS_WORKER"):
            os.kill(os.getpid(), signal.SIGKILL)
        x = self.x[index]
        if self.noise:
            # From each of the generators that people use.
            x = x + self.noise * (torch.randn(3) + np.random.standard_normal() + random.gauss(0, 1))
        return {"x": x, "y": self.y[index]}


class ListedPoints(Points):
    """Several samples at a time, as Hugging Face's datasets."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [self[index] for index in indices]


class WholePoints(Points):
    """A batch at a time."""

    def __getitems__(self, indices: list[int]) -> Sample:
        assert {type(index) for index in indices} == {int}
        return {"x": self.x[indices], "y": self.y[indices]}


class SeededPoints(Points):
    """A batch at a time, with random changes of its own to each sample."""

    def __getitems__(self, indices: list[int], seeds: Tensor) -> Sample:
        assert seeds.shape == (len(indices),)
        changes = (seeds % 1000) / 500 - 1
        return {"x": self.x[indices] + self.noise * changes[:, None], "y": self.y[indices]}


class Data(NamedTuple):
    train: Any
    val: Any
    title: str


def load(settings: TaskConfig) -> Data:
    forms = {"single": Points, "listed": ListedPoints, "whole": WholePoints, "seeded": SeededPoints}
    form = forms[settings.dataset]
    return Data(form(settings.train_size, 1, settings.noise), form(settings.val_size, 2), "points")
