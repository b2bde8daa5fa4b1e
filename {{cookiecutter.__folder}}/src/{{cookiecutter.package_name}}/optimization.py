"""How the weights are updated: the optimizer, and the course of its learning rate."""

from __future__ import annotations

import logging
import math

import torch
from ignite.handlers import LRScheduler
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from . import collectives
from .config import Config, OptimConfig, steps_of
from .distributed import backend
from .task import objective

logger = logging.getLogger(__package__)


def create_optimizer(model: nn.Module, config: Config, world_size: int) -> torch.optim.Optimizer:
    """Return the task's own optimizer, or the one of the section ``optim``.

    The learning rate of every parameter group is scaled to the number of processes as ``optim.lr_scaling`` says.
    """
    optimizer = getattr(objective, "create_optimizer", create_default_optimizer)(model, config)
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[config.optim.lr_scaling]
    several = len(optimizer.param_groups) > 1
    for number, group in enumerate(optimizer.param_groups):
        logger.info(
            "optimizer: %s%s, lr %g x %g = %g (lr_scaling %s), warm-up %s, then %s",
            type(optimizer).__name__,
            f" of {group.get('name', f'group {number}')}" if several or "name" in group else "",
            group["lr"],
            factor,
            group["lr"] * factor,
            config.optim.lr_scaling,
            config.optim.warmup,
            config.optim.schedule,
        )
        group["lr"] *= factor
    return optimizer


def create_default_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer that the section ``optim`` describes, the same for all parameters."""
    settings, fused = config.optim, backend.FUSED_OPTIMIZER
    if settings.name == "adamw":
        return torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=fused)
    return torch.optim.SGD(
        model.parameters(),
        settings.lr,
        momentum=0.9,
        nesterov=True,
        weight_decay=settings.weight_decay,
        # Torch has no such kernel for weights that are shared out.
        fused=fused and not collectives.is_shared_out(model),
    )


def create_lr_scheduler(
    optimizer: torch.optim.Optimizer, settings: OptimConfig, steps_per_epoch: int, steps: int
) -> LRScheduler:
    """Return what multiplies the learning rate of every parameter group by the same factor in each step.

    The factor grows linearly to 1 over the warm-up. Then it stays, or falls to ``optim.lr_floor`` at the end of the
    training, after ``steps`` in all.
    """
    warmup = max(steps_of(settings.warmup, steps_per_epoch), 1)
    floor = settings.lr_floor

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        # The last step of the warm-up is the first one of what follows.
        done = min((step - warmup + 1) / max(steps - warmup + 1, 2), 1.0)
        left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}[settings.schedule]
        return floor + (1 - floor) * left

    return LRScheduler(LambdaLR(optimizer, factor))
