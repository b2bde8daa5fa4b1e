"""What all peers share: the data, model, batch and learning rate of the benchmark's task."""

import argparse
from typing import Any, NamedTuple

import torch
from my_ddl_project.task.data import InMemory, load
from my_ddl_project.task.model import create_model
from my_ddl_project.task.settings import TaskConfig
from torch import nn
from torch.utils.data import Dataset, TensorDataset

LR = 0.003


class Work(NamedTuple):
    """The work of a program."""

    train: Dataset
    val: Dataset
    model: nn.Module
    share: int
    """samples of one step of one process"""
    epochs: int
    """of a lap"""
    evaluates: bool
    """after every epoch"""
    loader: dict[str, Any]
    """more arguments of each DataLoader"""


def read_work(processes: int) -> Work:
    """Return the work that the command line describes."""
    parser = argparse.ArgumentParser()
    for name in ("data", "model", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("width", "size", "val_size", "batch_size", "epochs", "num_workers", "evaluates"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    settings = TaskConfig(given.data, given.model, given.width, given.size, given.val_size, given.folder)
    data = load(settings)
    torch.manual_seed(0)
    workers = {"num_workers": given.num_workers, "persistent_workers": given.num_workers > 0}
    return Work(
        plain(data.train),
        plain(data.val),
        create_model(settings, data),
        given.batch_size // processes,
        given.epochs,
        bool(given.evaluates),
        workers,
    )


def plain(dataset: Any) -> Any:
    """Return torch's own dataset for data in memory."""
    return TensorDataset(dataset.inputs, dataset.targets) if isinstance(dataset, InMemory) else dataset


def print_step() -> None:
    """Print that the first step is done."""
    print("step 1/", flush=True)


def print_lap(epoch: int, work: Work) -> None:
    """Print that a lap is done if this epoch is its last."""
    if epoch % work.epochs == 0:
        print(f"lap {epoch // work.epochs}", flush=True)
