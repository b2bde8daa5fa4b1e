"""How the training is doing: its loss, its speed, and how long it waits for data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events


class Lap(NamedTuple):
    """What has been measured since the lap before."""

    loss: float
    """mean over the steps and ranks"""
    samples_per_second: float
    """without evaluations and checkpoints"""
    data_wait: float
    """part of the time in which this process waited for data"""


class Meter:
    """Adds up the loss of every step on the device; reading it reduces over the ranks and waits for the device.

    What it has added up belongs to a checkpoint: a run that resumes between two evaluations, or two laps, reports the
    losses that it would have reported.

    Args:
        batch_size: samples of one step, over all ranks.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._sum = torch.zeros((), device=idist.device())
        self._steps = 0
        self._waited = self._asked = self._mark = 0.0
        self._evaluation, self._lap = _Totals(), _Totals()

    def attach(self, trainer: Engine) -> None:
        """Measure every step of the trainer."""

        def ask() -> None:
            self._asked = time.perf_counter()

        def receive() -> None:
            self._waited += time.perf_counter() - self._asked
            self._asked = 0.0

        def update() -> None:
            loss: Any = trainer.state.output
            self._sum += loss
            self._steps += 1

        trainer.add_event_handler(Events.STARTED, self.restart_clock)
        trainer.add_event_handler(Events.GET_BATCH_STARTED, ask)
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, receive)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, update)

    @property
    def waits_for_data(self) -> bool:
        """Whether a step waits for its batch, before ignite counts it."""
        return self._asked > 0

    def read(self) -> None:
        """Take in the steps since the last reading; every rank must call it."""
        loss = float(idist.all_reduce(float(self._sum))) / idist.get_world_size()
        seconds = time.perf_counter() - self._mark
        for totals in (self._evaluation, self._lap):
            totals.add(loss, self._steps, seconds, self._waited)
        self._sum.zero_()
        self._steps = 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave out of the speed what has happened since the last reading, such as an evaluation."""
        self._mark, self._waited = time.perf_counter(), 0.0

    def lap(self) -> Lap:
        """Return what has been measured since the last lap; every rank must call it."""
        self.read()
        lap, self._lap = self._lap, _Totals()
        return Lap(lap.mean_loss, lap.speed(self._batch_size), lap.waited / max(lap.seconds, 1e-9))

    def reset(self) -> None:
        """Begin anew after an evaluation."""
        self._evaluation = _Totals()

    @property
    def steps(self) -> int:
        """The steps since the last evaluation, as far as they have been read."""
        return self._evaluation.steps

    @property
    def loss(self) -> float:
        """The mean loss since the last evaluation, as far as it has been read."""
        return self._evaluation.mean_loss

    @property
    def samples_per_second(self) -> float:
        """The speed since the last evaluation, or since the run resumed."""
        return self._evaluation.speed(self._batch_size)

    def state_dict(self) -> dict[str, float]:
        """Return the losses that have been read; rank 0 knows those of all ranks."""
        totals = {"evaluation": self._evaluation, "lap": self._lap}
        return {f"{name}_{key}": getattr(of, key) for name, of in totals.items() for key in ("loss", "steps")}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take up what ``state_dict`` returned."""
        self._evaluation = _Totals(state["evaluation_loss"], int(state["evaluation_steps"]))
        self._lap = _Totals(state["lap_loss"], int(state["lap_steps"]))


@dataclass
class _Totals:
    loss: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    timed_steps: int = 0
    """those of this process, not of one that it resumes"""

    def add(self, loss: float, steps: int, seconds: float, waited: float) -> None:
        self.loss += loss
        self.steps += steps
        self.seconds += seconds
        self.waited += waited
        self.timed_steps += steps

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.steps, 1)

    def speed(self, batch_size: int) -> float:
        return self.timed_steps * batch_size / max(self.seconds, 1e-9)
