"""One update of the weights. Yours to change: nothing else depends on how it is written.

The step owns what it updates. Its ``state_dict`` is part of every checkpoint, so whatever you add here (a second optimizer,
a teacher, a counter) resumes if you add it there. Batches arrive on the device, and random numbers are seeded for each step.
"""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .config import Config
from .optim import WeightAverage, create_optimizer, create_scheduler, follow_score, plan_of, restore
from .runtime import Task, average_gradients, mixed_precision, no_sync, split


class TrainStep:
    """Called by ignite's Engine for each batch.

    Args:
        model: the network, as ``distribute`` returned it.
        steps: length of the run, for the schedule.
    """

    def __init__(self, model: nn.Module, task: Task, config: Config, steps_per_epoch: int, steps: int) -> None:
        self.model, self.task, self.config = model, task, config
        self.network = getattr(model, "module", model)
        self.optimizer = create_optimizer(self.network, task, config)
        self.scheduler = create_scheduler(self.optimizer, config.optim, steps_per_epoch, steps)
        self.plan = plan_of(self.optimizer, config.optim, steps)
        # fp16 needs its loss scaled up; otherwise this does nothing.
        self.scaler = torch.amp.GradScaler(idist.device().type, enabled=config.train.amp == "fp16")
        decay = config.optim.ema_decay
        self.average = WeightAverage(self.network, decay) if decay is not None else None

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights; return the values to log, still on the device."""
        self.optimizer.zero_grad()
        micro_batches = split(batch, self.config.optim.accumulation_steps)
        loss = torch.zeros((), device=idist.device())
        for micro_batch in micro_batches:
            # Ranks average their gradients once, in the last backward pass.
            with no_sync(self.model, micro_batch is not micro_batches[-1]):
                with mixed_precision(self.config.train.amp):
                    outputs, targets = self.task.forward(self.model, micro_batch)
                    part = self.task.loss(outputs, targets) / len(micro_batches)
                self.scaler.scale(part).backward()
            loss += part.detach()
        # Unless the backward pass has done so.
        average_gradients(self.model)
        values = {"loss": loss}
        if self.config.optim.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            values["grad_norm"] = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        if self.average:
            self.average.update(self.network, engine.state.iteration)
        return values

    def evaluated(self, scores: list[float]) -> None:
        """Called with the scores of all evaluations after each of them, and when the run resumes."""
        follow_score(self.scheduler, scores)

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the model that a resumed run needs."""
        parts: dict[str, Any] = {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        return {"plan": self.plan, **{name: part.state_dict() for name, part in parts.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; settings of ``optim`` that changed since then apply from now on."""
        restore(self.optimizer, self.scheduler, self.plan, state)
        self.scaler.load_state_dict(state["scaler"])
