"""Five steps of other kinds. Copy one into step.py to train with it.

Add your own to ``STEPS``, and test_step.py checks that it learns the same on two processes as on one, and resumes.
"""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import Tensor, nn

from {{ cookiecutter.package_name }}.config import Config
from {{ cookiecutter.package_name }}.optim import WeightAverage, create_scheduler, plan_of
from {{ cookiecutter.package_name }}.runtime import Task, average_gradients
from {{ cookiecutter.package_name }}.step import TrainStep


class OwnStep(TrainStep):
    """A step in parts."""

    def backward(self, loss: Tensor) -> Tensor:
        """Replace the gradients by those of a loss, averaged over the ranks; return the loss."""
        self.optimizer.zero_grad()
        loss.backward()
        average_gradients(self.model)
        return loss.detach()

    def update(self) -> None:
        """Update the weights."""
        self.optimizer.step()
        self.scheduler.step()


class SharpnessAware(OwnStep):
    """Foret et al., "Sharpness-aware minimization" (2021): descends along the gradient at the worst point nearby."""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights."""
        loss = self.backward(self.task.loss(*self.task.forward(self.model, batch)))
        weights = [weight for weight in self.network.parameters() if weight.grad is not None]
        before = [weight.detach().clone() for weight in weights]
        gradients: Any = [weight.grad for weight in weights]
        with torch.no_grad():
            norm = torch.stack(torch._foreach_norm(gradients)).norm() + 1e-12
            steps: Any = torch._foreach_mul(gradients, 0.05 / norm)
            torch._foreach_add_(weights, steps)
        self.backward(self.task.loss(*self.task.forward(self.model, batch)))
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
        self.update()
        return {"loss": loss}


class LBFGS(OwnStep):
    """An optimizer that computes the loss several times in a step.

    Its line search amplifies rounding: in float32, one and two processes part after the first step.
    """

    def __init__(self, model: nn.Module, task: Task, config: Config, steps_per_epoch: int, steps: int) -> None:
        super().__init__(model, task, config, steps_per_epoch, steps)
        weights = self.network.parameters()
        self.optimizer = torch.optim.LBFGS(weights, 1.0, max_iter=3, history_size=5, line_search_fn="strong_wolfe")
        self.scheduler = create_scheduler(self.optimizer, config.optim, steps_per_epoch, steps)
        self.plan = plan_of(self.optimizer, config.optim, steps)

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights."""

        def closure() -> Any:
            loss = self.backward(self.task.loss(*self.task.forward(self.model, batch)))
            # The mean over the ranks: their line searches must take the same steps.
            return idist.all_reduce(loss) / idist.get_world_size()

        loss = torch.as_tensor(self.optimizer.step(closure))
        self.scheduler.step()
        return {"loss": loss}


class Teacher(OwnStep):
    """Tarvainen and Valpola, "Mean teachers" (2017): agrees with a moving average of itself, which is part of checkpoints."""

    def __init__(self, model: nn.Module, task: Task, config: Config, steps_per_epoch: int, steps: int) -> None:
        super().__init__(model, task, config, steps_per_epoch, steps)
        self.teacher = WeightAverage(self.network, decay=0.9)

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights, then those of the teacher."""
        with torch.no_grad():
            expected, _ = self.task.forward(self.teacher.model, batch)
        outputs, targets = self.task.forward(self.model, batch)
        disagreement = nn.functional.mse_loss(outputs, expected)
        loss = self.backward(self.task.loss(outputs, targets) + 0.1 * disagreement)
        self.update()
        self.teacher.update(self.network, engine.state.iteration)
        return {"loss": loss, "disagreement": disagreement.detach()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the model."""
        return {**super().state_dict(), "teacher": self.teacher.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.teacher.model.load_state_dict(state["teacher"])


class GradientPenalty(OwnStep):
    """Gulrajani et al., "Improved training of Wasserstein GANs" (2017): a loss that contains a gradient."""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights."""
        inputs, *others = batch
        # Tokens have no gradient; that of the outputs takes its place.
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
        outputs, targets = self.task.forward(self.model, (inputs, *others))
        loss = self.task.loss(outputs, targets)
        (gradient,) = torch.autograd.grad(loss, inputs if inputs.requires_grad else outputs, create_graph=True)
        # Of each sample: the loss is a mean over the samples of this rank.
        penalty = (gradient * len(gradient)).square().flatten(1).sum(1).mean()
        loss = self.backward(loss + 0.01 * penalty)
        self.update()
        return {"loss": loss, "penalty": penalty.detach()}


class SeveralTerms(OwnStep):
    """A loss of several terms: what the step returns is averaged over ranks and logged by name."""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights."""
        outputs, targets = self.task.forward(self.model, batch)
        fit, size = self.task.loss(outputs, targets), outputs.float().square().mean()
        loss = self.backward(fit + 0.001 * size)
        self.update()
        return {"loss": loss, "fit": fit.detach(), "size": size.detach()}


STEPS = (SharpnessAware, LBFGS, Teacher, GradientPenalty, SeveralTerms)
# The terms of a loss that a step logs, with their weights.
TERMS = {"SeveralTerms": {"fit": 1, "size": 0.001}}
