"""Points of a smooth function, in every form in which a dataset may answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .settings import TaskConfig

Sample = dict[str, Tensor]


class Points:
    """One sample at a time, as torch's own datasets."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(size, 3, generator=generator) * 2 - 1
        self.y = torch.sin(2 * self.x[:, 0]) + self.x[:, 1]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Sample:
        assert type(index) is int
        return {"x": self.x[index], "y": self.y[index]}


class ListedPoints(Points):
    """Several samples at a time, as Hugging Face's datasets."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [self[index] for index in indices]


class WholePoints(Points):
    """A batch at a time."""

    def __getitems__(self, indices: list[int]) -> Sample:
        assert {type(index) for index in indices} == {int}
        return {"x": self.x[indices], "y": self.y[indices]}


class Data(NamedTuple):
    train: Any
    val: Any
    title: str


def load(settings: TaskConfig) -> Data:
    form = {"single": Points, "listed": ListedPoints, "whole": WholePoints}[settings.dataset]
    return Data(form(settings.train_size, seed=1), form(settings.val_size, seed=2), "points")
