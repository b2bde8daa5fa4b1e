"""Processes that train apart, and average their weights now and then: ``distributed.strategy local-sgd``."""

from __future__ import annotations

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from . import collectives
from .distributed import backend


class WeightAverage:
    """Averages over the ranks the weights, and what the optimizer remembers of each of them, such as momentum.

    Afterwards all ranks are equal, so that a checkpoint of one of them is that of all.

    Args:
        model: what learns.
        follower: a moving average of its weights, or the model itself.
        scaler: of the loss; all ranks continue with that of rank 0, which is saved.
    """

    def __init__(
        self,
        model: nn.Module,
        follower: nn.Module,
        optimizer: torch.optim.Optimizer,
        trainer: Engine,
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.model, self.follower, self.optimizer = model, follower, optimizer
        self.trainer, self.scaler = trainer, scaler
        # They are equal now, at the beginning as after a checkpoint.
        self._step = trainer.state.iteration

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
        self.even_out()
        learning: list[Tensor] = []
        others: list[Tensor] = []
        for weight, followed in zip(self.model.parameters(), self.follower.parameters(), strict=True):
            tensors = learning if weight.requires_grad else others
            tensors += [weight, *remembered(self.optimizer, weight).values()]
            tensors += [followed] if followed is not weight else []
        # Without a gradient, most stay as they are, and the mean of equal numbers would be rounded; but a model may change them
        # itself, as one does that has a momentum encoder.
        collectives.average(learning if collectives.are_equal(others) else [*learning, *others])
        # A training that stops here, and resumes, has those of rank 0.
        collectives.broadcast_buffers(nn.ModuleList([self.model, self.follower]))
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(backend.all_gather_object(self.scaler.state_dict())[0])

    def even_out(self) -> None:
        """Let every rank remember something of what one of them does: a parameter may have had a gradient on that rank alone."""
        groups = self.optimizer.param_groups
        learning = [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]
        if not collectives.all_reduce_any(not all(remembered(self.optimizer, parameter) for parameter in learning)):
            return
        own = [
            {
                name: (value.shape, value.dtype, value.device.type)
                for name, value in remembered(self.optimizer, parameter).items()
            }
            for parameter in learning
        ]
        for known in backend.all_gather_object(own):
            for parameter, values in zip(learning, known, strict=True):
                state = self.optimizer.state[parameter]
                for name, (shape, dtype, kind) in values.items():
                    if not isinstance(state.get(name), Tensor):
                        # A count of steps is on the CPU, or on the device, as the optimizer requires.
                        device = kind if kind == "cpu" else parameter.device
                        alike = parameter if shape == parameter.shape else torch.empty(shape, device=device)
                        state[name] = torch.zeros_like(alike, dtype=dtype, device=device)


def remembered(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return what an optimizer remembers of a parameter and can be averaged, such as momentum, or a count of steps."""
    state = optimizer.state.get(parameter, {})
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return {name: value for name, value in tensors.items() if value.is_floating_point() or value.is_complex()}
