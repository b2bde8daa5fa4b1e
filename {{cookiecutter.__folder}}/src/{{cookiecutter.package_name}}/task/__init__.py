"""What you replace to train on your own data. docs/your-own-task.md walks through it.

settings.py   ``TaskConfig``: section ``task`` of the settings. Read before torch is imported.
data.py       ``load(settings)`` returns an object with ``train``, ``val`` and maybe ``test``. Optional: ``collate(samples)``,
              ``order(generator, batch_size)``.
model.py      ``create_model(settings, data)`` returns the network on the CPU, with random weights.
objective.py  ``forward(model, batch)``, ``loss(outputs, targets)``, ``SCORE`` and ``HIGHER_IS_BETTER``. Optional:
              ``metrics(device)`` and ``create_optimizer(model, config)``.

A function of data.py or objective.py that has a parameter ``settings`` or ``data`` gets the task's settings, or what
``load`` returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime import Task
    from .settings import TaskConfig


def load_task(settings: TaskConfig) -> Task:
    """Load the data and return the task; every process calls it once."""
    from ..runtime import create_task
    from . import data, model, objective

    return create_task(settings, data, model, objective)
