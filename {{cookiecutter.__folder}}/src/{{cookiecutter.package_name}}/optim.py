"""The optimizer, the schedule of its learning rate, and the moving average of the weights. Yours to change."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import ignite.distributed as idist
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from .config import Config, OptimConfig, steps_of
from .runtime import Task, UsageError

logger = logging.getLogger(__package__)


def create_optimizer(model: nn.Module, task: Task, config: Config) -> torch.optim.Optimizer:
    """Return the task's own optimizer, or that of section ``optim``, with learning rates scaled to the world size."""
    settings = config.optim
    options: dict[str, Any] = {"weight_decay": settings.weight_decay, "fused": supports_fused(model)}
    if task.create_optimizer:
        optimizer = task.create_optimizer(model, config)
        create = task.create_optimizer
        require_resumable(lambda other: create(other, config), model, type(optimizer))
    elif settings.name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings.lr, **options)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.9, nesterov=True, **options)
    world_size = idist.get_world_size()
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[settings.lr_scaling]
    for number, group in enumerate(optimizer.param_groups):
        group["lr"] = group["lr"] * factor
        name = f" ({group.get('name', number)})" if len(optimizer.param_groups) > 1 else ""
        logger.info("optimizer%s: %s, lr %g, %s", name, type(optimizer).__name__, group["lr"], settings.schedule)
    return optimizer


def require_resumable(create: Callable[[nn.Module], torch.optim.Optimizer], model: nn.Module, kind: type) -> None:
    """Raise UsageError for an own optimizer that goes on differently after its state is saved and restored."""
    if kind.__module__.startswith("torch."):
        return
    models = [copy.deepcopy(model) for _ in range(2)]
    optimizers = [create(one) for one in models]

    def step(number: int, gradient: float) -> None:
        torch.manual_seed(0)
        for weight in models[number].parameters():
            weight.grad = torch.full_like(weight, gradient) if weight.requires_grad else None
        optimizers[number].step()

    try:
        step(0, 1.0)
    except TypeError:  # it needs a closure, which only step.py has
        return
    models[1].load_state_dict(models[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for number in (0, 1):
        step(number, -2.0)
    for (name, weight), resumed in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        if not torch.equal(weight, resumed):
            fix = "Let its state_dict return all of its state, and load_state_dict restore it."
            raise UsageError(f"a resume would change how {kind.__name__} updates {name}. {fix}", 1)


def supports_fused(model: nn.Module) -> bool:
    """Return whether torch can update all weights in one kernel."""
    kinds = {weight.device.type for weight in model.parameters()}
    return kinds <= {"cpu", "cuda"} and all(weight.is_floating_point() for weight in model.parameters())


def create_scheduler(
    optimizer: torch.optim.Optimizer, settings: OptimConfig, steps_per_epoch: int, steps: int
) -> LRScheduler:
    """Return a schedule that is advanced after each of ``steps`` updates, or a ReduceLROnPlateau that follows the score.

    A linear warm-up, then constant, or down to ``optim.lr_floor`` at the end.
    """
    warmup = max(steps_of(settings.warmup, steps_per_epoch), 1)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        # The last step of the warm-up is the first of what follows.
        done = min((step - warmup + 1) / max(steps - warmup + 1, 2), 1.0)
        left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}[settings.schedule]
        return settings.lr_floor + (1 - settings.lr_floor) * left

    return LambdaLR(optimizer, factor)


def follow_score(scheduler: LRScheduler, scores: list[float]) -> None:
    """Advance a ReduceLROnPlateau by the evaluations that it has not seen; other schedules follow the steps."""
    if isinstance(scheduler, ReduceLROnPlateau):
        for score in scores[scheduler.last_epoch :]:
            scheduler.step(score)


def plan_of(optimizer: torch.optim.Optimizer, settings: OptimConfig, steps: int) -> dict[str, Any]:
    """Return what a schedule depends on: the settings, the length of the run, and the groups before the first step."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return {"settings": asdict(settings), "steps": steps, "groups": groups}


def restore(
    optimizer: torch.optim.Optimizer, scheduler: LRScheduler, plan: dict[str, Any], state: dict[str, Any]
) -> None:
    """Restore an optimizer and its schedule.

    If the plan changed, such as ``optim.lr`` or the length of the run, the schedule is run anew up to the current step.
    """
    optimizer.load_state_dict(state["optimizer"])
    if state["plan"] == plan:
        scheduler.load_state_dict(state["scheduler"])
        return
    for group, now, then in zip(optimizer.param_groups, plan["groups"], state["plan"]["groups"], strict=True):
        # An optimizer may count in its groups: keep what the settings did not change.
        group.update({name: value for name, value in now.items() if name == "lr" or then.get(name) != value})
    counts = state["scheduler"]
    while "last_epoch" not in counts:
        counts = counts["_schedulers"][0]
    with warnings.catch_warnings():
        # The optimizer itself does not step here.
        warnings.simplefilter("ignore")
        for _ in range(0 if isinstance(scheduler, ReduceLROnPlateau) else counts["last_epoch"]):
            scheduler.step()


class WeightAverage:
    """An exponential moving average of a model's weights; buffers are copied.

    Early in a run it averages over about a tenth of the steps so far, or the initial weights would dominate it for long.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after ``step`` updates."""
        weight = max(1 - self.decay, 9 / (10 + step))
        torch._foreach_lerp_([*self.model.parameters()], [*model.parameters()], weight)
        for mine, current in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(current)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the ``with`` block: hooks of the copy may refer to the model."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        averages, current = ([*one.parameters(), *one.buffers()] for one in (self.model, model))
        for mine, other in zip(averages, current, strict=True):
            kept = mine.clone()
            mine.copy_(other)
            other.copy_(kept)
