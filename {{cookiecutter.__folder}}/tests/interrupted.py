"""The package's commands, with a run that a signal interrupts: ``SIGNAL=TERM@5 python3 tests/interrupted.py train``.

The last rank sends the signal to itself after that step.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine
from torch import Tensor

from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.step import TrainStep


class Interrupted(TrainStep):
    """The project's own step, and a signal after one of them."""

    def __call__(self, engine: Engine, batch: Any) -> dict[str, Tensor]:
        """Update the weights."""
        values = super().__call__(engine, batch)
        name, _, step = os.environ["SIGNAL"].partition("@")
        if engine.state.iteration == int(step) and idist.get_rank() == idist.get_world_size() - 1:
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        return values


# Here, because processes that this one starts import this file too.
train: Any = import_module("{{ cookiecutter.package_name }}.train")
train.TrainStep = Interrupted

if __name__ == "__main__":
    sys.exit(main())
