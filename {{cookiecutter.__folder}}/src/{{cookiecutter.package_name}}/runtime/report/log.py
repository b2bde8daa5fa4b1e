"""The log, and the meter of losses and speed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Timer
from torch import Tensor

from . import logger


def start_log(file: Path | None = None) -> None:
    """Log to standard error and a file. Ranks other than 0 log warnings only."""
    rank = idist.get_rank()
    logger.setLevel(logging.WARNING if rank else logging.INFO)
    logger.propagate = False
    # The process prints an error itself.
    logging.getLogger("ignite.engine").setLevel(logging.CRITICAL)
    logger.handlers[:] = [logging.StreamHandler()]
    if file:
        logger.addHandler(logging.FileHandler(file))
        # The files of records report a full disk.
        logger.handlers[1].handleError = lambda record: None  # type: ignore[method-assign]

    def mark(record: logging.LogRecord) -> bool:
        record.prefix = "warning: " if record.levelno == logging.WARNING else ""
        return True

    text = f"%(asctime)s {f'[rank {rank}] ' if rank else ''}%(prefix)s%(message)s"
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter(text, "%H:%M:%S", defaults={"prefix": ""}))
        handler.addFilter(mark)


@dataclass
class Totals:
    """Sums over some steps."""

    values: dict[str, float] = field(default_factory=dict)
    """of what the step returned, averaged over ranks"""
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    """seconds that this process waited for data"""
    timed_steps: int = 0
    """steps of this process, not of a run that it resumed"""

    def mean(self, name: str) -> float:
        """Return the mean of a value over the steps."""
        return self.values.get(name, 0.0) / max(self.steps, 1)

    def speed(self, batch_size: int) -> float:
        """Return samples per second."""
        return self.timed_steps * batch_size / max(self.seconds, 1e-9)


class Meter:
    """Sums what each step returns, on the device; reading the sums waits for the device and the other ranks.

    The sums are part of a checkpoint: a resumed run logs the losses that it would have logged.

    Args:
        batch_size: samples of one step over all ranks.
    """

    def __init__(self, trainer: Engine, batch_size: int) -> None:
        self.batch_size = batch_size
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._clock, self._waiting = Timer(), Timer()
        self.evaluation, self.lap = Totals(), Totals()
        trainer.add_event_handler(Events.STARTED, self.restart_clock)
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self._waiting.resume)
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, self._waiting.pause)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._add)

    def _add(self, engine: Engine) -> None:
        output: Any = engine.state.output
        self._steps += 1
        for name, value in output.items():
            # The norm of sharded gradients is sharded too.
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            if name in self._sums:
                self._sums[name] += value
            else:
                # XLA devices have no float64.
                dtype = torch.float32 if value.device.type == "xla" else torch.float64
                self._sums[name] = value.detach().to(dtype, copy=True)

    def read(self) -> None:
        """Add the sums since the last reading to the totals. Every rank must call it."""
        values: dict[str, float] = {}
        if self._sums:
            sums: Any = idist.all_reduce(torch.stack([*self._sums.values()]))
            values = dict(zip(self._sums, (sums / idist.get_world_size()).tolist(), strict=True))
        for totals in (self.evaluation, self.lap):
            for name, value in values.items():
                totals.values[name] = totals.values.get(name, 0.0) + value
            totals.steps += self._steps
            totals.timed_steps += self._steps
            totals.seconds += self._clock.value()
            totals.waited += self._waiting.value()
        self._sums.clear()
        self._steps = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last reading, such as an evaluation, from the speed."""
        self._clock.reset()
        self._waiting.reset()
        self._waiting.pause()

    def take_lap(self) -> Totals:
        """Return the totals since the last lap. Every rank must call it."""
        self.read()
        lap, self.lap = self.lap, Totals()
        return lap

    def reset(self) -> None:
        """Start new totals after an evaluation, whose time does not count."""
        self.evaluation = Totals()
        self.restart_clock()

    @property
    def loss(self) -> float:
        """Mean loss since the last evaluation, up to the last reading."""
        return self.evaluation.mean("loss")

    @property
    def samples_per_second(self) -> float:
        """Speed since the last evaluation, without evaluations and checkpoints."""
        return self.evaluation.speed(self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the totals, without times."""
        parts = {"evaluation": self.evaluation, "lap": self.lap}
        return {name: {"values": part.values, "steps": part.steps} for name, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        parts = (state["evaluation"], state["lap"])
        self.evaluation, self.lap = (Totals(dict(part["values"]), part["steps"]) for part in parts)


def significant(value: float, figures: int = 6) -> float:
    """Return ``value`` rounded to so many significant figures."""
    return float(f"{value:.{figures}g}")
