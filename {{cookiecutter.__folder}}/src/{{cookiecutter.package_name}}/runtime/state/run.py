"""A run: its checkpoints, the checks before each save, and its exit code."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine
from torch import nn

from .. import process
from ..process import collectives
from ..report import UsageError, logger
from ..report.log import Meter, significant
from ..report.summary import source_digest, write_summary
from ..task import Task
from . import checkpoints, saved_checkpoints
from .checkpoints import Stateful
from .directory import RunDirectory
from .records import Evaluations, Record, read_records

# Called with each Run when ``track`` has declared its state; a pack may add one.
extensions: list[Callable[[Run], None]] = []


class Unchanged:
    """Facts of a run that must be the same when it resumes."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def state_dict(self) -> dict[str, Any]:
        """Return the facts and a hash of the owner's source."""
        return {**self.facts, "source": source_digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise UsageError if a fact changed; warn if the source did."""
        for name, value in self.facts.items():
            if state.get(name) != value:
                fix = "Restore it, or choose another train.run_dir."
                raise UsageError(f"{name} was {state.get(name)} in the checkpoint and is {value} now. {fix}")
        if state["source"] != source_digest():
            logger.warning("the source of this project changed since the checkpoint was saved")


class Run(AbstractContextManager["Run"]):
    """One run in its run directory. Every rank calls every method.

    Args:
        score: the metric that chooses the best checkpoint.

    Raises:
        UsageError: if the folder cannot be written, is in use, or holds a run although ``train.resume`` is none.
    """

    def __init__(self, settings: Any, score: str, higher_is_better: bool) -> None:
        self.settings = settings
        self.evaluations = Evaluations(f"val_{score}", higher_is_better)
        self.resumed_from: str | None = None
        self.stopped = False
        """whether a signal ended the run after a checkpoint"""
        self.exit_code = 0
        self.before_save: list[Callable[[], None]] = []
        """called before a checkpoint is saved"""
        self.started_at = time.perf_counter()
        self.directory = RunDirectory(settings)
        self.path = self.directory.path
        # A node with an older view of the file system must not choose another one.
        self.start_from = collectives.from_rank_zero(self.directory.checkpoint_to_resume())
        """the checkpoint that the run resumes from, or an empty text"""

    def __exit__(self, *_: object) -> None:
        self.directory.close()

    def track(
        self,
        trainer: Engine,
        model: nn.Module,
        average: nn.Module | None = None,
        unchanged: Mapping[str, Any] | None = None,
        **others: Stateful,
    ) -> None:
        """Declare what a checkpoint contains; each part has ``state_dict`` and ``load_state_dict``.

        Args:
            average: a moving average of the model, if that is evaluated and kept as the best.
            unchanged: facts that must be the same when the run resumes, such as the size of the data.
        """
        self.trainer, self.model, self.evaluated = trainer, model, average or model
        self.meter = Meter(trainer, self.settings.data.batch_size)
        score = {"SCORE": self.evaluations.score, "HIGHER_IS_BETTER": self.evaluations.higher_is_better}
        self.state: dict[str, Stateful] = {"run": Unchanged({**(unchanged or {}), **score}), "trainer": trainer}
        self.state |= {"model": model, "meter": self.meter, **others}
        if average:
            self.state["average"] = average
        for extension in extensions:
            extension(self)

    @property
    def iteration(self) -> int:
        """Steps done."""
        return int(self.trainer.state.iteration)

    def initialize(self, model: nn.Module) -> None:
        """Load ``train.init_from`` into the model, unless the run resumes. Call it before ``distribute``."""
        if self.settings.train.init_from and not self.start_from:
            checkpoints.initialize(model, Path(self.settings.train.init_from))

    def resume(self) -> None:
        """Restore the checkpoint to resume from, if any, and the records up to it.

        Raises:
            UsageError: if it is damaged, or of another program.
        """
        if found := self.start_from:
            self.resumed_from = found
            checkpoints.load(Path(found), self.state)
            logger.info("resumed from %s at step %s", found, self.iteration)
        if self.directory.writes:
            file = self.path / "metrics.jsonl"
            self.evaluations.all = read_records(file, self.iteration, self.evaluations.score)
        self.evaluations.all = collectives.from_rank_zero(self.evaluations.all)
        if self.is_evaluated():
            self.meter.reset()

    @staticmethod
    def load(checkpoint: str, model: nn.Module) -> None:
        """Load the weights of a checkpoint into a model: those of the average, if the run evaluated one."""
        checkpoints.load(Path(checkpoint), {"model": model})

    def is_evaluated(self) -> bool:
        """Return whether the current step has been evaluated."""
        return any(record["iteration"] == self.iteration for record in self.evaluations.all[-1:])

    def begin(self) -> None:
        """Write config.yaml, and remove files and records of later steps."""
        self.directory.claim(self.evaluations, self.iteration)

    def save(self) -> None:
        """Save a checkpoint.

        Raises:
            UsageError: if the loss or a weight is NaN or inf, or the ranks' weights differ; nothing is saved.
        """
        for action in self.before_save:
            action()
        self.meter.read()
        self.require_finite(self.meter.loss, check_weights=True)
        # Such as the statistics of BatchNorm, before one rank saves them or each evaluates with its own.
        collectives.broadcast([*nn.ModuleList([self.model, self.evaluated]).buffers()])
        collectives.require_same_trainable(self.model)
        collectives.require_equal_weights(self.model, self.iteration)
        self.directory.save("last", self.iteration, self.state, keep=2)
        self.meter.restart_clock()

    def require_finite(self, loss: float, check_weights: bool = False) -> None:
        """Raise UsageError on every rank if the loss, or a weight, is NaN or inf."""
        what = "" if math.isfinite(loss) else f"the loss is {loss:g}"
        if not what and check_weights and collectives.any_rank(not collectives.is_finite(self.model)):
            what = "weights are NaN or inf"
        if what:
            saved = saved_checkpoints(self.directory.checkpoints, "last")
            then = f"resumes from {saved[-1]}" if saved else "starts anew"
            fix = f"Lower optim.lr, set optim.clip_norm or check the data; the same command {then}."
            raise UsageError(f"{what} after step {self.iteration}. {fix}", 1)

    def record(self, record: Record) -> None:
        """Save the best checkpoint if this evaluation has the best score, and add it to metrics.jsonl."""
        record = {name: significant(value) if isinstance(value, float) else value for name, value in record.items()}
        self.evaluations.add(record)
        if self.evaluations.since_best() == 0 and self.evaluations.has_score():
            self.directory.save("best", self.iteration, {"model": self.evaluated, "trainer": self.trainer}, keep=1)
        # Last: a run that was killed before repeats the evaluation.
        self.directory.add("metrics.jsonl", "eval", record)
        self.meter.reset()

    def stop(self) -> None:
        """Note that the run stopped after a checkpoint, and set the exit code that says so."""
        self.stopped = True
        if self.directory.writes:
            (self.path / "stopped").touch()
        # Other nodes may not see the file in time.
        supervised = os.environ.get(process.SUPERVISED) and idist.get_nnodes() == 1
        self.exit_code = 0 if supervised else process.EXIT_RESUMABLE

    def finish(self, task: Task) -> int:
        """Write summary.json and curves.png; return the exit code."""
        facts = {"resumed_from": self.resumed_from, "weights_difference": collectives.weights_difference(self.model)}
        seconds = round(time.perf_counter() - self.started_at, 3)
        if self.directory.writes:
            best = self.directory.best(self.evaluations)
            write_summary(self.path, self.evaluations, best, {**facts, "wall_time_s": seconds}, self.settings, task)
            self.directory.finish(best)
        return 0
