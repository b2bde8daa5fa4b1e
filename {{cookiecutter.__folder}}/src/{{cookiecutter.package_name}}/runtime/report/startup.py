"""What a person wants to know when a run starts, and notes on what depends on the number of processes."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from ..data import Share, seed_step, used_rng
from ..data.loader import Reader
from ..process import exchange, hardware
from ..task import Task
from . import UsageError, logger
from .summary import device_name


def log_startup(
    trainer: Engine, task: Task, model: nn.Module, config: Any, steps_per_epoch: int, last_step: int
) -> None:
    """Log processes, data, model and length of the run; compare the ranks' data, and the model after the first step.

    Raises:
        UsageError: if the ranks have different data.
    """
    world_size, batch_size = idist.get_world_size(), config.data.batch_size
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    validation = ", ".join(f"{len(dataset)} {name}".strip() for name, dataset in task.val.items())
    share, threads = batch_size // world_size, torch.get_num_threads()
    backend = idist.backend() or "none"
    logger.info("processes: %s on %s, backend %s, %s threads each", world_size, device_name(), backend, threads)
    logger.info("data: %s, %s training and %s validation samples", task.title, len(task.train), validation)
    logger.info("model: %s, %s trainable parameters", type(model).__name__, f"{trainable:,}")
    text = "training: %s steps of %s samples, %s on each process, %s steps per epoch; writes to %s"
    logger.info(text, last_step, batch_size, share, steps_per_epoch, config.train.run_dir)
    if any(isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        samples = share // config.optim.accumulation_steps
        logger.info("BatchNorm sees %s samples at a time: results depend on the number of processes", samples)
    compare_data(task, config)
    before = shapes_of(model)

    @trainer.on(Events.ITERATION_COMPLETED(once=trainer.state.iteration + 1))
    def check_first_step() -> None:
        if changed := sorted(set(before.items()) ^ set(shapes_of(model).items())):
            fix = "Create it with its final shape in create_model."
            raise UsageError(f"the first step changed {changed[0][0]} in the model's state_dict. {fix}", 1)
        reseed = partial(seed_step, config.train.seed, idist.get_rank(), trainer.state.iteration)
        if hardware.SHOWS_RNG_USE and used_rng(reseed, idist.device()):
            logger.info("a step uses random numbers, such as dropout: results depend on the number of processes")


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight and buffer by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def compare_data(task: Task, config: Any) -> None:
    """Raise UsageError if the ranks' data differ in size; warn if samples differ, or change when they are read again."""
    datasets = {"training": task.train, **{f"validation {name}".strip(): one for name, one in task.val.items()}}
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    fix = "make load in task/data.py return the same data on every rank"
    found: list[Any] = []
    # Workers may need to open the data first.
    for name, dataset in datasets.items() if not config.data.num_workers else ():
        reader = Reader(dataset, config.train.seed, task.collate)
        first, again = fingerprint(reader, len(dataset)), fingerprint(reader, len(dataset))
        found.append(first)
        if first != again:
            text = "a sample of the %s data changes when it is read again: its random numbers come from a generator of its own"
            logger.warning(text, name)
    everyones = exchange.all_gather_object((sizes, found))
    for rank, (others, their_samples) in enumerate(everyones):
        if others != everyones[0][0]:
            raise UsageError(f"rank {rank} has {others} samples, rank 0 {everyones[0][0]}: {fix}.", 1)
        if their_samples != everyones[0][1]:
            logger.warning("rank %s has other samples than rank 0: %s", rank, fix)


def fingerprint(reader: Reader, size: int) -> list[float]:
    """Return numbers that identify the first and last sample of a dataset; none if they cannot be read."""
    try:
        leaves = [
            leaf for index in (0, size - 1) for leaf in pytree.tree_leaves(reader.__getitems__(Share(0, [index])))
        ]
    except Exception:  # noqa: BLE001 - the run raises it when it reads the sample
        return []
    sums = [float(leaf.double().nan_to_num().sum()) for leaf in leaves if isinstance(leaf, Tensor)]
    return sums + [float(zlib.crc32(leaf.encode())) for leaf in leaves if isinstance(leaf, str)]
