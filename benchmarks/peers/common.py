"""What all programs of the benchmark share: the data, model, batch and optimizer of the rendered project's task."""

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
    """What is to be trained."""

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
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser()
    for name in ("data", "model", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("width", "size", "val_size", "batch_size", "epochs", "num_workers", "evaluates"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asked = parser.parse_args()
    settings = TaskConfig(asked.data, asked.model, asked.width, asked.size, asked.val_size, asked.folder)
    data = load(settings)
    torch.manual_seed(0)
    workers = {"num_workers": asked.num_workers, "persistent_workers": asked.num_workers > 0}
    return Work(
        plain(data.train),
        plain(data.val),
        create_model(settings, data),
        asked.batch_size // processes,
        asked.epochs,
        bool(asked.evaluates),
        workers,
    )


def plain(dataset: Any) -> Any:
    """Return what one would write: torch's own dataset, if it is in memory."""
    return TensorDataset(dataset.inputs, dataset.targets) if isinstance(dataset, InMemory) else dataset


def tell_of_step() -> None:
    """Print that the first step is done; throughput.py takes the time."""
    print("step 1/", flush=True)


def tell_of_epoch(number: int, work: Work) -> None:
    """Print that a lap is done, if the epoch is its last one, with its evaluation."""
    if number % work.epochs == 0:
        print(f"lap {number // work.epochs}", flush=True)
