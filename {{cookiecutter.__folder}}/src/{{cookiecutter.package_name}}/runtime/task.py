"""The task as one object, and the DataLoaders of its data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import ignite.distributed as idist
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from .data import EvaluationBatches, Order, TrainBatches, seed_cpu
from .data.loader import create_loader
from .report import UsageError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    """The functions and constants of ``task/``, with its settings and data bound to parameters of these names."""

    train: Any
    """training set: a dataset with a length"""
    val: dict[str, Any]
    """validation sets by name; the name of a single one is empty"""
    test: dict[str, Any]
    """test sets by name: ``evaluate --split test`` alone reads them"""
    title: str
    data: Any
    """what ``load`` of task/data.py returned"""
    create_model: Callable[[], nn.Module]
    forward: Callable[[nn.Module, Any], tuple[Any, Any]]
    """from the model and a batch to outputs and targets"""
    loss: Callable[[Any, Any], Tensor]
    """from outputs and targets to their mean loss"""
    metrics: Callable[[torch.device], dict[str, Any]]
    """from a device to ignite metrics by name"""
    collate: Callable[[list[Any]], Any]
    """from samples to a batch"""
    order: Order | None
    """from a generator and the batch size to the indices of an epoch"""
    create_optimizer: Callable[[nn.Module, Any], torch.optim.Optimizer] | None
    """from the model and all settings to an optimizer, instead of that of optim.py"""
    score: str
    """metric that chooses the best checkpoint, or "loss" """
    higher_is_better: bool
    loss_label: str
    evaluation_batch_size: int


def create_task(settings: Any, data: ModuleType, model: ModuleType, objective: ModuleType) -> Task:
    """Load the data and bind the functions of the task's modules.

    Raises:
        UsageError: if the data are not datasets, weights lie outside the model, or SCORE is not a metric.
    """
    # A random split in ``load`` is the same in every process and command.
    seed_cpu(0)
    loaded = data.load(settings)
    known = {"settings": settings, "data": loaded}

    def bound(module: ModuleType, name: str, default: Any = None) -> Any:
        function = getattr(module, name) if default is None else getattr(module, name, default)
        try:
            parameters = inspect.signature(function).parameters
        except ValueError:  # a function of torch that is written in C++
            return function
        extra = {key: known[key] for key in known if key in parameters}
        return partial(function, **extra) if extra else function

    task = Task(
        train=getattr(loaded, "train", None),
        val=by_name(getattr(loaded, "val", None)),
        test=by_name(getattr(loaded, "test", {})),
        data=loaded,
        title=str(getattr(loaded, "title", type(loaded).__name__)),
        create_model=partial(model.create_model, settings, loaded),
        forward=bound(objective, "forward"),
        loss=bound(objective, "loss"),
        metrics=bound(objective, "metrics", lambda device: {}),
        collate=bound(data, "collate", default_collate),
        order=bound(data, "order") if hasattr(data, "order") else None,
        create_optimizer=getattr(objective, "create_optimizer", None),
        score=objective.SCORE,
        higher_is_better=objective.HIGHER_IS_BETTER,
        loss_label=getattr(objective, "LOSS_LABEL", "loss"),
        evaluation_batch_size=getattr(data, "EVALUATION_BATCH_SIZE", 256),
    )
    require_datasets(task)
    require_weights_inside(objective)
    scores = [f"{name}_{score}".strip("_") for name in task.val for score in ("loss", *task.metrics(CPU))]
    if task.score not in scores:
        raise UsageError(f"SCORE {task.score} is not one of the task's metrics. Use one of {', '.join(scores)}.", 1)
    if task.score.endswith("loss") and task.higher_is_better:
        raise UsageError(f"SCORE {task.score} is a loss. Set HIGHER_IS_BETTER = False.", 1)
    return task


def by_name(datasets: Any) -> dict[str, Any]:
    """Return data sets by name; the name of a single one is empty."""
    return dict(datasets) if isinstance(datasets, Mapping) else {"": datasets}


def require_datasets(task: Task) -> None:
    """Raise UsageError unless every data set has a length and an index."""
    sets = {"train": task.train}
    for split, datasets in (("val", task.val), ("test", task.test)):
        sets |= {f"{split} {name}".strip(): dataset for name, dataset in datasets.items()}
    for name, dataset in sets.items():
        several = isinstance(dataset, list | tuple) and isinstance(next(iter(dataset), None), Dataset)
        if several or isinstance(dataset, DataLoader | IterableDataset) or not hasattr(dataset, "__len__"):
            fix = "Return a dataset with len() and [index], or a dict of them for val; docs/how-do-i.md shows one for streams."
            raise UsageError(f"{name} of what load in task/data.py returned is a {type(dataset).__name__}. {fix}", 1)


def require_weights_inside(objective: ModuleType) -> None:
    """Raise UsageError for weights in objective.py, which would be neither trained nor saved."""
    for name, value in vars(objective).items():
        weights = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in weights):
            fix = "Make it part of what create_model returns."
            raise UsageError(f"{name} in task/objective.py has weights outside the model. {fix}", 1)


def create_loaders(task: Task, config: Any, split: str = "val") -> tuple[DataLoader[Any], dict[str, DataLoader[Any]]]:
    """Return the DataLoader of this rank's share of every global batch, and one of each validation or test set, by name.

    Raises:
        UsageError: if the global batch is not divisible by the world size, or a set is empty or missing.
    """
    if not (datasets := {"val": task.val, "test": task.test}[split]):
        raise UsageError(f"load in task/data.py returned no {split} set. Return an object with a field {split}.")
    rank, world_size = idist.get_rank(), idist.get_world_size()

    def loader(dataset: Any, batches: Any) -> DataLoader[Any]:
        return create_loader(dataset, batches, config.data.num_workers, task.collate, config.distributed.timeout_s)

    batches = TrainBatches(len(task.train), config.data.batch_size, rank, world_size, config.train.seed, task.order)
    size = task.evaluation_batch_size
    evaluated = {
        name: loader(dataset, EvaluationBatches(len(dataset), size, rank, world_size))
        for name, dataset in datasets.items()
    }
    return loader(task.train, batches), evaluated
