"""The functions of task/objective.py, with the settings and the data that they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from .checks import require
from .config import Config
from .errors import UsageError
from .launch import task_checks
from .randomness import seed_samples
from .task import objective
from .task.data import load

if TYPE_CHECKING:
    from ignite.metrics import Metric


@dataclass(frozen=True)
class Objective:
    """What the task minimizes and measures; each function is called with what stands here, and nothing more."""

    forward: Callable[[nn.Module, Any], tuple[Any, Any]]
    """from the model and a batch to outputs and targets"""
    loss: Callable[[Any, Any], Tensor]
    """from outputs and targets to their mean loss"""
    losses: Callable[[nn.Module, Any], Iterator[tuple[str, Tensor]]] | None
    """from the model and a batch to losses, each for its own group of parameters, as two networks that play against each
    other have; or None, where there is one loss"""
    metrics: Callable[[torch.device], dict[str, Metric]]
    """from a device to the table of metrics"""
    write_examples: Callable[[nn.Module, Path, int], None] | None
    """from the model, a folder and the step to files in the folder; or None, where there is nothing to look at"""


def load_data(config: Config) -> Any:
    """Return what ``load`` of task/data.py returns, if what the task requires is there: this machine may not be the one it was
    looked for on.

    A split that it draws is the same in every process and in every command, whatever train.seed is.

    Raises:
        UsageError: if something that the task requires is missing.
    """
    require(task_checks(config))
    seed_samples(0)
    return load(config.task)


def bind(settings: Any, data: Any) -> Objective:
    """Return the functions of task/objective.py; one that has a parameter ``settings`` or ``data`` gets these.

    Raises:
        UsageError: if a function has parameters that nobody gives it, or the data are not two sets of known length.
    """
    if not (hasattr(data, "train") and hasattr(data, "val")):
        raise UsageError(
            f"load in task/data.py returned {type(data).__name__}: return something with the fields train and val, such as a "
            "NamedTuple",
            1,
        )

    for name in ("train", "val"):
        dataset = getattr(data, name)
        if isinstance(dataset, DataLoader | IterableDataset) or not hasattr(dataset, "__len__"):
            raise UsageError(
                f"{name} of what load in task/data.py returned is a {type(dataset).__name__}: return a dataset with len() and "
                "[index], which this project cuts into batches itself; what streams is written to files before",
                1,
            )
    for name in ("SCORE", "HIGHER_IS_BETTER"):
        if not hasattr(objective, name):
            raise UsageError(f"task/objective.py has no {name}, which chooses the best checkpoint: set it there", 1)
    if objective.SCORE == "loss" and objective.HIGHER_IS_BETTER:
        raise UsageError(
            "SCORE of task/objective.py is the loss, of which less is better: set HIGHER_IS_BETTER = False", 1
        )

    for name, value in vars(objective).items():
        weights = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in weights):
            raise UsageError(
                f"{name} of task/objective.py holds weights outside the model, which nothing would save, or share between processes: "
                "make it a part of what create_model of task/model.py returns, or, if it is to stay as it is, call its "
                "requires_grad_(False)",
                1,
            )

    known = {"settings": settings, "data": data}

    def bound(name: str, *called_with: str) -> Any:
        function = getattr(objective, name, None)
        if not function:
            raise UsageError(f"task/objective.py has no function {name}: write it, as docs/your-own-task.md shows", 1)
        try:
            signature = inspect.signature(function)
        except ValueError:  # one of torch's that is written in C++
            return function
        # Whoever calls the batch "data" means the batch.
        more = list(signature.parameters)[len(called_with) :]
        asked = {parameter: value for parameter, value in known.items() if parameter in more}
        try:
            signature.bind(*called_with, **asked)
        except TypeError as error:
            raise UsageError(
                f"{name} in task/objective.py: {error}: it is called with {' and '.join(called_with)}, and with the "
                "task's settings and data if it has parameters of these names",
                1,
            ) from None
        return partial(function, **asked) if asked else function

    return Objective(
        forward=bound("forward", "model", "batch"),
        loss=bound("loss", "outputs", "targets"),
        losses=bound("losses", "model", "batch") if hasattr(objective, "losses") else None,
        metrics=bound("metrics", "device") if hasattr(objective, "metrics") else lambda device: {},
        write_examples=bound("write_examples", "model", "folder", "step")
        if hasattr(objective, "write_examples")
        else None,
    )
