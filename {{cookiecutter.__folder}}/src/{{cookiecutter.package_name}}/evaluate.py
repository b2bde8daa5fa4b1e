"""Evaluation during training and of a checkpoint: the same numbers on any number of processes. Yours to change."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import ignite.distributed as idist
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .config import Config
from .runtime import Run, Task, compute_metrics, create_loaders, mixed_precision, prepare_model
from .task import load_task


def evaluate(
    model: nn.Module, loaders: dict[str, DataLoader[Any]], task: Task, config: Config, split: str = "val"
) -> dict[str, float]:
    """Return ``val_loss`` and ``val_METRIC``; of several validation sets, ``val_NAME_loss`` and so on."""
    step = partial(evaluation_step, task=task, config=config)
    results: dict[str, float] = {}
    for name, loader in loaders.items():
        scores = compute_metrics(step, model, loader, task)
        prefix = f"{split}_{name}_" if name else f"{split}_"
        results |= {prefix + metric: value for metric, value in scores.items()}
    return results


@torch.no_grad()
def evaluation_step(model: nn.Module, batch: Any, task: Task, config: Config) -> tuple[Any, Any, Tensor | None]:
    """Return outputs, targets and mean loss of a batch, or None for a task without one; the model is in eval mode."""
    with mixed_precision(config.train.amp):
        outputs, targets = task.forward(model, batch)
        return outputs, targets, task.loss(outputs, targets)


def evaluation(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Print the metrics of ``--checkpoint`` as one line of JSON."""
    task = load_task(config.task)
    model = prepare_model(task.create_model())
    Run.load(options["checkpoint"], model)
    _, loaders = create_loaders(task, config, options["split"])
    metrics = evaluate(model, loaders, task, config, options["split"])
    if idist.get_rank() == 0:
        print(json.dumps({"checkpoint": options["checkpoint"], **metrics}))
    return 0
