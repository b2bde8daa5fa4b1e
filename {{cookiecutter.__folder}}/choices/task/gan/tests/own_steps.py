"""Two steps of other kinds. Copy one into step.py to train with it.

Add your own to ``STEPS``, and test_step.py checks that it learns the same on two processes as on one, and resumes.
"""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine
from torch import Tensor

from {{ cookiecutter.package_name }}.step import TrainStep
from {{ cookiecutter.package_name }}.task.objective import discriminator_loss, generator_loss


class GradientPenalty(TrainStep):
    """Mescheder et al., "Which training methods for GANs do actually converge?" (2018): a loss that contains a gradient."""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update both networks."""

        def penalized(model: Any, batch: Any) -> Tensor:
            images = batch[0].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model.discriminator(images).sum(), images, create_graph=True)
            penalty: Tensor = gradient.square().flatten(1).sum(1).mean()
            return discriminator_loss(model, batch) + 0.05 * penalty

        values = {
            **self.update("discriminator", penalized, [batch]),
            **self.update("generator", generator_loss, [batch]),
        }
        return {"loss": values["loss_discriminator"] + values["loss_generator"], **values}


class ManyUpdates(TrainStep):
    """Several updates of the discriminator for each update of the generator, which logs the loss of every step."""

    updates = 0
    """of the discriminator, part of checkpoints"""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the discriminator, and in every third step the generator."""
        values = self.update("discriminator", discriminator_loss, [batch])
        self.updates += 1
        if self.updates % 3 == 0:
            values |= self.update("generator", generator_loss, [batch])
        else:
            with torch.no_grad():
                values["loss_generator"] = generator_loss(self.network, batch)
        return {"loss": values["loss_discriminator"] + values["loss_generator"], **values}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the model."""
        return {**super().state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.updates = state["updates"]


STEPS = (GradientPenalty, ManyUpdates)
# The terms of a loss that a step logs, with their weights.
TERMS = {step.__name__: {"loss_discriminator": 1, "loss_generator": 1} for step in STEPS}
