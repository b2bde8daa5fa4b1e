"""The settings of the small task."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from {{ cookiecutter.package_name }}.checks import Check
    from {{ cookiecutter.package_name }}.config import Config
else:
    from ..checks import Check


@dataclass(frozen=True)
class TaskConfig:
    """What is learned, from how many points."""

    dataset: Literal["single", "listed", "whole", "seeded"] = "single"
    """how it answers: one sample, a list of samples, a whole batch, or a whole batch with a seed for each sample"""
    train_size: int = 1024
    """training samples"""
    val_size: int = 300
    """validation samples, so many that they do not fill two batches"""
    width: int = 16
    """hidden units"""
    noise: float = 0.0
    """size of random changes to each training point"""
    dropout: float = 0.0
    """part of the hidden units that is left out of a step"""
    batch_norm: bool = False
    """normalize the hidden units over the batch"""
    expert: bool = False
    """a layer that a rank uses in a third of the steps, others than the other ranks"""
    edges: bool = False
    """pass the hidden units along the edges of a graph, which are a sparse matrix"""
    frozen: bool = False
    """let the first layer learn nothing"""
    requires: str = "math"
    """a module that has to be there"""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"task.width must be at least 1, not {self.width}")


def validate(config: Config) -> None:
    """Raise ValueError if the batch is larger than the training set."""
    size = getattr(config.task, "train_size")  # noqa: B009 - another type than that of the package's own task
    if config.data.batch_size > size:
        raise ValueError(f"data.batch_size {config.data.batch_size} is larger than task.train_size {size}")


def requirements(config: Config) -> Iterator[Check]:
    """Yield one check that can be made to fail."""
    module = getattr(config.task, "requires")  # noqa: B009
    found = importlib.util.find_spec(module) is not None
    yield Check("data", found, f"module {module}", "choose another task.requires")
