"""Processes that train apart, and average their weights now and then: ``distributed.strategy local-sgd``."""

from __future__ import annotations

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from . import collectives


class WeightAverage:
    """Averages over the ranks the weights, and what the optimizer remembers of each of them, such as momentum.

    Afterwards all ranks are equal, so that a checkpoint of one of them is that of all.

    Args:
        model: what learns, and what follows it, such as a moving average of its weights.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, trainer: Engine) -> None:
        self.model, self.optimizer, self.trainer = model, optimizer, trainer
        self._step = 0

    def attach(self, *periods: int) -> None:
        """Average whenever so many steps are done, for each of the periods; to be attached before what needs equal ranks."""

        @self.trainer.on(Events.ITERATION_COMPLETED)
        def average_if_due() -> None:
            if any(self.trainer.state.iteration % period == 0 for period in periods):
                self.average()

    def average(self) -> None:
        """Average, unless that has been done since the last step; every rank must call it."""
        if self._step == self.trainer.state.iteration:
            return
        self._step = self.trainer.state.iteration
        tensors: list[Tensor] = []
        for parameter in self.model.parameters():
            tensors.append(parameter)
            # What is one number, such as a count of steps, is the same on every rank.
            remembered = self.optimizer.state.get(parameter, {}).values()
            tensors += [value for value in remembered if isinstance(value, Tensor) and value.dim() > 0]
        collectives.average(tensors)
