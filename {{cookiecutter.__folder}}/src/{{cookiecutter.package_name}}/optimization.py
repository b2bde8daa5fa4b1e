"""How the weights are updated: the optimizer, and the course of its learning rate."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch
from ignite.handlers import LRScheduler
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils import _pytree as pytree

from . import collectives
from .config import Config, OptimConfig, steps_of
from .distributed import backend
from .errors import UsageError
from .task import objective

logger = logging.getLogger(__package__)


def create_optimizer(model: nn.Module, config: Config, world_size: int) -> torch.optim.Optimizer:
    """Return the task's own optimizer, or the one of the section ``optim``.

    The learning rate of every parameter group is scaled to the number of processes as ``optim.lr_scaling`` says.

    Raises:
        UsageError: if a resumed run would not continue with what it has learned.
    """
    optimizer: Any = getattr(objective, "create_optimizer", create_default_optimizer)(model, config)
    refuse_what_would_not_resume(optimizer, model)
    if has_eval(optimizer):
        optimizer.train()
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[config.optim.lr_scaling]
    asked, created = config.optim.name, type(optimizer).__name__
    if asked != OptimConfig.name and asked not in created.lower():
        logger.warning("optim.name %s counts for nothing: create_optimizer in task/objective.py has %s", asked, created)
    # Torch has no fused SGD for weights that are shared out.
    could_be_fused = optimizer.defaults.get("fused", False) is None and has_a_fused_step(model)
    if could_be_fused and not optimizer.defaults.get("foreach") and not collectives.is_shared_out(model):
        logger.info("optimizer: %s(..., fused=backend.FUSED_OPTIMIZER) in task/objective.py would be faster", created)
    several = len(optimizer.param_groups) > 1
    learning = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    others = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in learning]
    if left := sum(weight.numel() for weight in others):
        logger.warning("%s parameters are in no group of the optimizer, and stay as they are", f"{left:,}")
    for number, group in enumerate(optimizer.param_groups):
        logger.info(
            "optimizer: %s%s, lr %g x %g = %g (lr_scaling %s), warm-up %s, then %s",
            created,
            f" of {group.get('name', f'group {number}')}" if several or "name" in group else "",
            group["lr"],
            factor,
            group["lr"] * factor,
            config.optim.lr_scaling,
            config.optim.warmup,
            config.optim.schedule,
        )
        # A new one: groups may share a tensor.
        group["lr"] = group["lr"] * factor
        # Torch does not read numpy's numbers back from a checkpoint.
        group.update({name: value.item() for name, value in group.items() if isinstance(value, np.generic)})
    result: torch.optim.Optimizer = optimizer
    return result


def refuse_what_would_not_resume(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer of which a checkpoint would hold only a part, which nobody would notice.

    Raises:
        UsageError: if it is none, updates weights outside the model, or leaves its work to others that would not resume.
    """
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        fix = "return an object of a class that is derived from torch.optim.Optimizer"
        raise UsageError(f"create_optimizer in task/objective.py returned {kind}: {fix}", 1)
    of_model = {id(weight) for weight in model.parameters()}
    updated = [weight for group in optimizer.param_groups for weight in group["params"]]
    if others := sum(weight.numel() for weight in updated if id(weight) not in of_model):
        raise UsageError(
            f"the optimizer updates {others:,} parameters outside the model, which the processes would neither share nor save: let "
            "create_model of task/model.py return one module that holds all that learns",
            1,
        )
    parts = pytree.tree_leaves([*vars(optimizer).values()])
    inside = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
    if not inside:
        return
    works, fix = type(inside[0]).__name__, "or return one optimizer with a group for each kind of weight"
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        raise UsageError(
            f"{kind} leaves its work to {works}, whose state no checkpoint would hold: give it a state_dict and a load_state_dict "
            f"that do, {fix}",
            1,
        )
    # As a run that resumes does; torch makes new groups then, and what is set in those of one would not reach the other.
    optimizer.load_state_dict(optimizer.state_dict())
    groups = {id(group) for group in optimizer.param_groups}
    if any(id(group) not in groups for part in inside for group in part.param_groups):
        raise UsageError(
            f"{kind} and {works}, to which it leaves its work, have different groups after load_state_dict, so that no learning "
            f"rate would reach {works}: let load_state_dict give both the same, {fix}",
            1,
        )


@contextmanager
def weights_to_measure(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Give the model, inside the ``with`` block, the weights that its optimizer means to be used.

    Those of schedule-free optimizers are others than those that a step begins from: their eval() and train() switch.
    """
    switches: Any = optimizer
    if not has_eval(optimizer):
        yield
        return
    switches.eval()
    try:
        yield
    finally:
        switches.train()


def has_eval(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer has other weights to measure than those that it updates."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


def require_state_of_all(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Refuse to save an optimizer that remembers something of other weights on other ranks, as only rank 0 writes.

    Raises:
        UsageError: on every rank.
    """
    # One that shares its state out has another inside, and collects it before a save.
    if idist.get_world_size() == 1 or hasattr(optimizer, "optim"):
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    known = [bool(optimizer.state.get(weight)) for weight in weights]
    if any(other != known for other in backend.all_gather_object(known)):
        raise UsageError(
            f"the ranks' optimizers remember something of different weights after step {step}, of which only that of rank 0 would "
            "be saved: let each rank update all weights, or choose distributed.strategy zero1",
            1,
        )


def create_default_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer that the section ``optim`` describes, the same for all parameters."""
    settings, fused = config.optim, has_a_fused_step(model)
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


def has_a_fused_step(model: nn.Module) -> bool:
    """Tell whether torch has one kernel that updates all weights: not of complex numbers."""
    return backend.FUSED_OPTIMIZER and all(weight.is_floating_point() for weight in model.parameters())


class GroupSettings:
    """What the parameter groups were created with, which belongs to a checkpoint.

    A run that resumes takes up the groups as they are in the checkpoint, with what an optimizer counts in them, but for
    settings that are others by now.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.now = self.then = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs to a checkpoint."""
        return {"groups": self.now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.then = state["groups"]

    def apply_changes(self) -> None:
        """Give the groups what is another setting now than when the checkpoint was written."""
        for group, now, then in zip(self.optimizer.param_groups, self.now, self.then, strict=True):
            group.update({name: value for name, value in now.items() if name not in then or differ(value, then[name])})


def lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give what an optimizer remembers of a weight the layout in memory that the weight has, and its count of steps a place.

    That of a checkpoint may be another one, as ``train.channels_last`` chose then, and fused kernels go through memory number
    by number. They require the count on the weight's device, where loading leaves it only if the optimizer was fused when the
    checkpoint was written, and shares nothing out.
    """
    # One that shares its state out has another inside, and nothing for the weights of other ranks.
    both = (optimizer, *([optimizer.optim] if hasattr(optimizer, "optim") else []))
    fused = any(group.get("fused") for each in both for group in each.param_groups)
    for each in both:
        for group in each.param_groups:
            for weight in group["params"]:
                state = each.state.get(weight) or {}
                for name, value in state.items():
                    if torch.is_tensor(value) and value.shape == weight.shape and value.stride() != weight.stride():
                        state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
                if fused and torch.is_tensor(state.get("step")):
                    state["step"] = state["step"].to(weight.device)


def differ(one: Any, other: Any) -> bool:
    """Tell whether two values, which may be tensors, are not the same."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return not torch.equal(one.cpu(), other.cpu())
    return bool(one != other)


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
