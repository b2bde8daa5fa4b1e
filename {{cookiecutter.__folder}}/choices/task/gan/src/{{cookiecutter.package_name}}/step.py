"""One update of both networks. Yours to change: nothing else depends on how it is written.

The step owns what it updates. Its ``state_dict`` is part of every checkpoint, so whatever you add here resumes if you add it
there. Batches arrive on the device, and random numbers are seeded for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import Tensor, nn

from .config import Config
from .optim import WeightAverage, create_optimizer, create_scheduler, plan_of, restore
from .runtime import Task, average_gradients, mixed_precision, split
from .task.objective import discriminator_loss, generator_loss

# Steps between two pictures of generated images in run_dir/examples.
EXAMPLES_EVERY = 200


class TrainStep:
    """Called by ignite's Engine for each batch.

    Args:
        model: the GAN, as ``distribute`` returned it.
        steps: length of the run, for the schedules.
    """

    def __init__(self, model: nn.Module, task: Task, config: Config, steps_per_epoch: int, steps: int) -> None:
        self.config = config
        # Its networks are called one by one, so DistributedDataParallel does not see a forward pass: see ``update``.
        self.network: Any = getattr(model, "module", model)
        of_discriminator = replace(config, optim=replace(config.optim, lr=config.task.discriminator_lr))
        self.optimizers = {
            "discriminator": create_optimizer(self.network.discriminator, task, of_discriminator),
            "generator": create_optimizer(self.network.generator, task, config),
        }
        self.optimizer = self.optimizers["generator"]
        """the one whose learning rate is logged"""
        self.schedulers, self.plans = {}, {}
        for name, optimizer in self.optimizers.items():
            self.schedulers[name] = create_scheduler(optimizer, config.optim, steps_per_epoch, steps)
            self.plans[name] = plan_of(optimizer, config.optim, steps)
        # fp16 needs losses scaled up; otherwise this does nothing.
        self.scaler = torch.amp.GradScaler(idist.device().type, enabled=config.train.amp == "fp16")
        decay = config.optim.ema_decay
        self.average = WeightAverage(self.network, decay) if decay is not None else None

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the discriminator, then the generator; return the values to log, still on the device."""
        micro_batches = split(batch, self.config.optim.accumulation_steps)
        values = {
            **self.update("discriminator", discriminator_loss, micro_batches),
            **self.update("generator", generator_loss, micro_batches),
        }
        self.scaler.update()
        step = engine.state.iteration
        if self.average:
            self.average.update(self.network, step)
        if step % EXAMPLES_EVERY == 0 and idist.get_rank() == 0:
            self.write_examples(Path(self.config.train.run_dir, "examples", f"{step:06}.png"))
        return {"loss": values["loss_discriminator"] + values["loss_generator"], **values}

    def update(self, name: str, loss_of: Callable[[Any, Any], Tensor], micro_batches: list[Any]) -> dict[str, Tensor]:
        """Update one of the networks by its own loss; return the loss, and with clipping the norm of the gradients."""
        network, optimizer = self.network.get_submodule(name), self.optimizers[name]
        weights = list(network.parameters())
        optimizer.zero_grad()
        loss = torch.zeros((), device=idist.device())
        for micro_batch in micro_batches:
            with mixed_precision(self.config.train.amp):
                part = loss_of(self.network, micro_batch) / len(micro_batches)
            # The other network gets no gradients.
            self.scaler.scale(part).backward(inputs=weights)
            loss += part.detach()
        average_gradients(network)
        values = {f"loss_{name}": loss}
        if self.config.optim.clip_norm is not None:
            self.scaler.unscale_(optimizer)
            values[f"grad_norm_{name}"] = nn.utils.clip_grad_norm_(weights, self.config.optim.clip_norm)
        self.scaler.step(optimizer)
        self.schedulers[name].step()
        return values

    @torch.no_grad()
    def write_examples(self, file: Path) -> None:
        """Write 100 generated images, always from the same noise."""
        # Importing it takes time.
        from matplotlib import image

        network: Any = self.average.model if self.average else self.network
        noise = torch.randn(100, self.config.task.noise, generator=torch.Generator().manual_seed(0))
        images = nn.functional.pad(network.generator(noise.to(idist.device())).float().cpu(), (1, 1, 1, 1), value=-1)
        grid = images.reshape(10, 10, 10, 10).transpose(1, 2).reshape(100, 100)
        file.parent.mkdir(exist_ok=True)
        image.imsave(file, grid.numpy(), cmap="gray", vmin=-1, vmax=1)

    def evaluated(self, scores: list[float]) -> None:
        """Called with the scores of all evaluations after each of them, and when the run resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the model."""
        state: dict[str, Any] = {"scaler": self.scaler.state_dict()}
        for name, optimizer in self.optimizers.items():
            parts = {"optimizer": optimizer.state_dict(), "scheduler": self.schedulers[name].state_dict()}
            state[name] = {"plan": self.plans[name], **parts}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; settings of ``optim`` that changed since then apply from now on."""
        for name, optimizer in self.optimizers.items():
            restore(optimizer, self.schedulers[name], self.plans[name], state[name])
        self.scaler.load_state_dict(state["scaler"])
