"""What a person wants to know when a training starts."""

from __future__ import annotations

import logging
import math
from collections import Counter
from contextlib import nullcontext
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.utils import apply_to_tensor, convert_tensor
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .binding import Objective
from .config import Config
from .distributed import hardware
from .engines import cut
from .errors import UsageError
from .evaluation import evaluating, refuse_metrics_of_many_numbers
from .randomness import has_drawn

logger = logging.getLogger(__package__)


def introduce(model: nn.Module, data: Any, config: Config, steps_per_epoch: int, steps: int) -> None:
    """Log the data, the model, the length of the training, and layers that depend on the number of processes."""
    world_size, batch_size = idist.get_world_size(), config.data.batch_size
    share = batch_size // world_size // config.optim.accumulation_steps
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info("data: %s, %s training and %s validation samples", title_of(data), len(data.train), len(data.val))
    logger.info("model: %s with %s parameters to learn", type(model).__name__, f"{parameters:,}")
    logger.info(
        "training: %s steps of %s samples, %s on each process; an epoch has %s steps, and leaves out %s samples, others each "
        "time; writes to %s",
        steps,
        batch_size,
        batch_size // world_size,
        steps_per_epoch,
        len(data.train) % batch_size,
        config.train.run_dir,
    )
    kinds = Counter(type(module).__name__ for module in model.modules() if isinstance(module, _BatchNorm))
    if kinds.pop(nn.SyncBatchNorm.__name__, 0):
        logger.info("SyncBatchNorm normalizes over all processes: their number changes nothing")
    settings = config.distributed
    if world_size > 1 and settings.compression == "powersgd":
        logger.info(
            "gradients are exchanged as matrices of low rank: another number of processes learns otherwise, and so does a "
            "training that resumes, as what was left out so far is not saved"
        )
    elif world_size > 1 and settings.compression != "none":
        logger.info(
            "gradients are rounded to %s to be exchanged: another number of processes learns otherwise",
            settings.compression,
        )
    if world_size > 1 and settings.strategy == "local-sgd":
        logger.info(
            "weights are averaged every %s steps, and at each log point, evaluation and save: another number of processes "
            "learns otherwise",
            settings.average_every,
        )
    for kind in kinds:
        logger.info(
            "%s normalizes over %s samples at a time: another number of processes learns otherwise", kind, share
        )


def title_of(data: Any) -> str:
    """Return what the task calls its data, or the kind of its dataset."""
    return str(getattr(data, "title", type(data.train).__name__))


def tell_of_draws(trainer: Engine, config: Config) -> None:
    """Log, after a step, if something in it has drawn random numbers, such as dropout."""
    if not hardware.SHOWS_DRAWS:
        logger.info("this device does not tell whether a step draws random numbers, which differ between ranks")
    elif has_drawn(idist.device(), config.train.seed, idist.get_rank(), trainer.state.iteration):
        logger.info(
            "a step draws random numbers, other ones on each rank: another number of processes learns otherwise"
        )


def tell_of_shapes(outputs: Any, targets: Any) -> None:
    """Log if outputs and targets hold as many numbers in other shapes, which losses and metrics stretch to fit, silently."""
    shapes = [tuple(part.shape) if isinstance(part, Tensor) else () for part in (outputs, targets)]
    if shapes[0] != shapes[1] and math.prod(shapes[0]) == math.prod(shapes[1]) > 1:
        logger.warning(
            "outputs have the shape %s and targets %s: as many numbers, which a loss may pair wrongly; let forward return both "
            "in one shape",
            *shapes,
        )


def tell_of_loss(trainer: Engine, model: nn.Module, config: Config, objective: Objective) -> None:
    """Log, after a step, if the loss of a batch is not the mean of the losses of its halves.

    What is averaged over processes is not that of the whole batch then, as where samples have weights, or targets are left out.
    """
    if objective.losses:
        return
    # What is compiled would be compiled once more.
    eager = torch.compiler.set_stance("force_eager") if config.train.compile else nullcontext()
    batch: Any = trainer.state.batch
    with torch.no_grad(), evaluating(model), eager:
        try:
            batch = convert_tensor(batch, idist.device())
            answered = objective.forward(model, batch)
            even: Any = apply_to_tensor(answered, lambda tensor: tensor[: len(tensor) // 2 * 2])
            outputs, targets = even
            tell_of_shapes(outputs, targets)
            refuse_metrics_of_many_numbers(outputs, targets, objective)
            whole = float(objective.loss(outputs, targets))
            halves = [float(objective.loss(cut(outputs, part, 2), cut(targets, part, 2))) for part in range(2)]
        except UsageError:
            raise
        except Exception:  # noqa: BLE001 - such a batch cannot be cut, and the training itself has taken it
            return
    if abs(whole - sum(halves) / 2) > 1e-3 * abs(whole):
        logger.info(
            "the loss of a batch is %.6g, the mean of those of its halves %.6g: another number of processes, or of "
            "optim.accumulation_steps, learns otherwise",
            whole,
            sum(halves) / 2,
        )
