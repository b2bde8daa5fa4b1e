"""What one step of training does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.utils import convert_tensor
from torch import Tensor, nn

from . import collectives
from .binding import Objective
from .config import Config
from .distributed import backend
from .errors import UsageError
from .profiling import Stopwatch
from .randomness import seed_step

AUTOCAST_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def create_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: Config,
    objective: Objective,
    stopwatch: Stopwatch,
) -> Engine:
    """Return the engine whose step updates the weights and outputs the batch's mean loss, still on the device.

    Nothing here waits for the device: ``Meter`` sums the loss there until it is looked at.
    """
    device, rank = idist.device(), idist.get_rank()
    update = update_in_turns if objective.losses else update_once
    # DistributedDataParallel does so itself, where it can.
    does_so = isinstance(model, nn.parallel.DistributedDataParallel) and model.broadcast_buffers
    share_buffers = config.distributed.strategy != "local-sgd" and not does_so and idist.get_world_size() > 1

    def step(engine: Engine, batch: Any) -> Tensor:
        seed_step(config.train.seed, rank, engine.state.iteration)
        stopwatch.begin("copy")
        batch = convert_tensor(batch, device, non_blocking=True)
        if share_buffers:
            stopwatch.begin("exchange")
            collectives.broadcast_buffers(model)
        loss, engine.state.metrics = update(model, optimizer, scaler, config, objective, stopwatch, batch)
        stopwatch.begin("loop")
        return loss

    return Engine(step)


def update_once(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: Config,
    objective: Objective,
    stopwatch: Stopwatch,
    batch: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Update the weights by the gradient of the batch; return its mean loss, and the norm of a clipped gradient."""
    parts, samples = config.optim.accumulation_steps, config.data.batch_size // idist.get_world_size()
    stopwatch.begin("optimizer")
    optimizer.zero_grad()
    losses = []
    for part in range(parts):
        # The processes exchange gradients once for each step, with the last part.
        stopwatch.begin("forward")
        with backend.no_sync(model, enabled=part < parts - 1):
            with mixed_precision(config):
                micro_batch = batch if parts == 1 else cut(batch, part, parts, samples)
                loss = loss_of(model, micro_batch, objective) / parts
            stopwatch.begin("backward")
            scaler.scale(loss).backward()
        losses.append(loss.detach())
    stopwatch.begin("optimizer")
    norm = backend.optimizer_step(optimizer, scaler, config.optim.clip_norm)
    loss = losses[0] if parts == 1 else torch.stack(losses).sum()
    return loss, {} if norm is None else {"grad_norm": norm}


def loss_of(model: nn.Module, batch: Any, objective: Objective) -> Tensor:
    """Return the mean loss of a batch.

    Raises:
        UsageError: if a function of the task returned something else than it has to.
    """
    answer = objective.forward(model, batch)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise UsageError(
            f"forward in task/objective.py returned {type(answer).__name__}: return two things, outputs and targets", 1
        )
    return to_learn_from(objective.loss(*answer), "loss in task/objective.py returned")


def to_learn_from(loss: Any, whence: str) -> Tensor:
    """Return the loss; ``whence`` begins the sentence that refuses it.

    Raises:
        UsageError: if it is not one number that has a gradient.
    """
    if not isinstance(loss, Tensor):
        raise UsageError(f"{whence} {type(loss).__name__}: let it be a tensor, without .item()", 1)
    if loss.dim():
        raise UsageError(f"{whence} numbers of the shape {tuple(loss.shape)}: let it be their mean", 1)
    if not loss.requires_grad:
        raise UsageError("the loss has no gradient: compute it of what the model answers, without detach or no_grad", 1)
    return loss


def update_in_turns(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: Config,
    objective: Objective,
    stopwatch: Stopwatch,
    batch: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Update one group of parameters after the other, each by the loss that the task yields for it.

    Returns the sum of the losses, each of them on this rank, and the norms of clipped gradients.

    Raises:
        UsageError: if the task yields something else than it has to, or the optimizer has no group of that name.
    """
    groups = {group.get("name"): group["params"] for group in optimizer.param_groups}
    assert objective.losses
    turns = objective.losses(model, batch)
    if not isinstance(turns, Iterator):
        kind = type(turns).__name__
        raise UsageError(f"losses in task/objective.py returned {kind}: yield a name and a loss for each turn", 1)
    losses: list[Tensor] = []
    measured: dict[str, Tensor] = {}
    while True:
        stopwatch.begin("forward")
        # Each is computed after the update by the one before.
        with mixed_precision(config):
            turn = next(turns, None)
        if turn is None and losses:
            return torch.stack(losses).sum(), measured
        if not isinstance(turn, tuple) or len(turn) != 2:
            kind = "nothing" if turn is None else type(turn).__name__
            raise UsageError(f"losses in task/objective.py yields {kind}: yield a name and a loss for each turn", 1)
        name, loss = turn[0], to_learn_from(turn[1], "losses in task/objective.py yields")
        if name not in groups:
            known = ", ".join(map(str, groups))
            raise UsageError(
                f"losses in objective.py yields {name}, create_optimizer has groups {known}: give one that name", 1
            )
        # Without a gradient, the other groups stay as they are.
        optimizer.zero_grad()
        stopwatch.begin("backward")
        learning = [weight for weight in groups[name] if weight.requires_grad]
        scaler.scale(loss).backward(inputs=learning)
        stopwatch.begin("exchange")
        if not backend.STEP_AVERAGES:
            collectives.average([weight.grad for weight in groups[name] if weight.grad is not None])
        stopwatch.begin("optimizer")
        norm = backend.optimizer_step(optimizer, scaler, config.optim.clip_norm)
        losses.append(loss.detach())
        measured[f"loss_{name}"] = losses[-1]
        if norm is not None:
            measured[f"grad_norm_{name}"] = norm


def mixed_precision(config: Config) -> AbstractContextManager[object]:
    """Compute in the type that ``train.amp`` names, within a ``with`` block."""
    dtype = AUTOCAST_TYPES[config.train.amp]
    # One that is not enabled would take as long as one that is.
    return torch.autocast(idist.device().type, dtype) if dtype else nullcontext()


def change_tensors(nested: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``nested`` with each of its tensors changed, in mappings, lists and tuples; anything else in it stays as it is."""
    if isinstance(nested, Tensor):
        return change(nested)
    kind: Any = type(nested)
    if isinstance(nested, Mapping):
        return kind({name: change_tensors(one, change) for name, one in nested.items()})
    if isinstance(nested, list | tuple):
        changed = [change_tensors(one, change) for one in nested]
        return kind(*changed) if hasattr(nested, "_fields") else kind(changed)
    return nested


def cut(batch: Any, part: int, parts: int, samples: int | None = None) -> Any:
    """Return every ``parts``-th sample of a batch, from ``part`` on: of tensors and lists of text, however they are nested.

    Raises:
        UsageError: if a tensor, or a list of text, has not as many entries as there are samples.
    """
    if isinstance(batch, Tensor):
        _refuse_other_lengths(samples, f"a tensor of the shape {tuple(batch.shape)}", *batch.shape[:1])
        # Contiguous, as a whole batch is: a model may want to view it in another shape.
        return batch[part::parts].contiguous()
    if isinstance(batch, Mapping):
        kind: Any = type(batch)
        return kind({name: cut(nested, part, parts, samples) for name, nested in batch.items()})
    if isinstance(batch, list | tuple):
        if batch and all(isinstance(one, str) for one in batch):
            _refuse_other_lengths(samples, f"a list of {len(batch)} texts", len(batch))
            return batch[part::parts]
        nested = [cut(one, part, parts, samples) for one in batch]
        return type(batch)(*nested) if hasattr(batch, "_fields") else type(batch)(nested)
    return batch


def _refuse_other_lengths(samples: int | None, what: str, *length: int) -> None:
    """Raise UsageError if a part of a batch has not as many entries as there are samples, where that is known."""
    if samples and length != (samples,):
        raise UsageError(
            f"optim.accumulation_steps cuts a batch between its {samples} samples, and {what} has another number: put the "
            "samples first, or set optim.accumulation_steps to 1",
            1,
        )
