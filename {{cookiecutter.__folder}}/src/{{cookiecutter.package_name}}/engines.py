"""What one step of training does, and how its loss is kept."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.utils import apply_to_tensor, convert_tensor
from torch import Tensor, nn

from .config import Config
from .distributed import backend
from .task import objective

AUTOCAST_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def create_trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, config: Config
) -> Engine:
    """Return the engine whose step updates the weights once and outputs the batch's mean loss, still on the device.

    Nothing here waits for the device: the loss is summed there, in ``LossMeter``, until it is looked at.
    """
    device = idist.device()
    dtype = AUTOCAST_TYPES[config.train.amp]
    parts, clip_norm = config.optim.accumulation_steps, config.optim.clip_norm

    def step(engine: Engine, batch: Any) -> Tensor:
        batch = convert_tensor(batch, device, non_blocking=True)
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
        backend.optimizer_step(optimizer, scaler, clip_norm)
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    trainer = Engine(step)
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: model.train())
    return trainer


def cut(batch: Any, part: int, parts: int) -> Any:
    """Return every ``parts``-th sample of a batch of tensors, however they are nested, from ``part`` on."""
    return apply_to_tensor(batch, lambda tensor: tensor[part::parts])


class LossMeter:
    """Adds up the loss of every step on the device; reading it reduces over the ranks and waits for the device."""

    def __init__(self) -> None:
        self._sum = torch.zeros((), device=idist.device())
        self._steps = 0
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch."""
        self._sum.zero_()
        self._steps = self.epoch_steps = 0
        self._epoch_sum = 0.0

    def update(self, engine: Engine) -> None:
        """Take the loss of one step, without waiting for it."""
        loss: Any = engine.state.output
        self._sum += loss
        self._steps += 1

    def read(self) -> float:
        """Return the mean loss over all ranks since the last look; every rank must call it."""
        total = float(idist.all_reduce(float(self._sum))) / idist.get_world_size()
        steps = self._steps
        self._sum.zero_()
        self._steps = 0
        self._epoch_sum += total
        self.epoch_steps += steps
        return total / steps if steps else self.epoch_mean

    @property
    def epoch_mean(self) -> float:
        """The mean loss of this epoch, as far as it has been read."""
        return self._epoch_sum / max(self.epoch_steps, 1)
