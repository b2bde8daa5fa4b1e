"""Two steps of other kinds: each replaces step.py's. Copy one into step.py to train with it.

``python3 tests/own_steps.py train`` trains with each of them to ``LAST`` in two runs: one in one go, and one that is stopped
halfway and resumed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from ignite.engine import Engine
from torch import Tensor

from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.config import Config
from {{ cookiecutter.package_name }}.step import TrainStep
from {{ cookiecutter.package_name }}.task.objective import discriminator_loss, generator_loss

HALF, LAST = 6, 12


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
# Processes that this one starts import this file too.
package: Any = import_module("{{ cookiecutter.package_name }}.train")
training = package.training


def train_with_each(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Train with each step, in folders of their names; return the first exit code that is not 0."""
    for step in STEPS:
        package.TrainStep = step
        for folder, lengths in {"whole": (LAST,), "resumed": (HALF, LAST)}.items():
            for length in lengths:
                run_dir = f"{config.train.run_dir}/{step.__name__}/{folder}"
                settings = replace(config.train, run_dir=run_dir, max_iterations=length)
                if code := training(local_rank, replace(config, train=settings), options):
                    return int(code)
    return 0


if __name__ == "__main__":
    package.training = train_with_each
    sys.exit(main())
