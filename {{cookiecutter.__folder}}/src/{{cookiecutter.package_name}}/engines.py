"""What one step of training does."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.utils import apply_to_tensor, convert_tensor
from torch import Tensor, nn

from . import collectives
from .config import Config
from .distributed import backend
from .randomness import seed_step
from .task import objective

AUTOCAST_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def create_trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, config: Config
) -> Engine:
    """Return the engine whose step updates the weights once and outputs the batch's mean loss, still on the device.

    Nothing here waits for the device: ``Meter`` sums the loss there until it is looked at.
    """
    device, rank = idist.device(), idist.get_rank()
    dtype = AUTOCAST_TYPES[config.train.amp]
    parts, clip_norm = config.optim.accumulation_steps, config.optim.clip_norm
    # DistributedDataParallel does so itself.
    share_buffers = not isinstance(model, nn.parallel.DistributedDataParallel)

    def step(engine: Engine, batch: Any) -> Tensor:
        seed_step(config.train.seed, rank, engine.state.iteration)
        batch = convert_tensor(batch, device, non_blocking=True)
        if share_buffers:
            collectives.broadcast_buffers(model)
        optimizer.zero_grad()
        losses = []
        for part in range(parts):
            # The processes exchange gradients once for each step, with the last part.
            with backend.no_sync(model, enabled=part < parts - 1):
                with torch.autocast(device.type, dtype, enabled=dtype is not None):
                    micro_batch = batch if parts == 1 else cut(batch, part, parts)
                    loss = objective.loss(*objective.forward(model, micro_batch)) / parts
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        engine.state.metrics["grad_norm"] = backend.optimizer_step(optimizer, scaler, clip_norm)
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    return Engine(step)


def cut(batch: Any, part: int, parts: int) -> Any:
    """Return every ``parts``-th sample of a batch of tensors, however they are nested, from ``part`` on."""
    return apply_to_tensor(batch, lambda tensor: tensor[part::parts])
