"""A run: its folder, its checkpoints and its records, from the first step to the summary."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import yaml
from ignite.engine import Engine
from torch import nn

from .. import process
from ..process import collectives
from ..report import UsageError, logger
from ..report.log import Meter, create_handlers, significant
from ..report.summary import write_summary
from ..report.tracking import Tracker
from ..task import Task
from . import LogFile, checkpoints, plain, remove, saved_checkpoints, step_of, unwritable, write
from .records import Record, Records
from .reopen import Opened, open_run_directory

# Called with each Run when ``track`` has declared its state; a pack may add one.
extensions: list[Callable[[Run], None]] = []


class Run(AbstractContextManager["Run"]):
    """The folder of one run. Rank 0 writes and locks it.

    It holds config.yaml, metrics.jsonl, steps.jsonl, summary.json, curves.png, log.txt and checkpoints/.

    Args:
        settings: the Config of config.py.
        score: the metric that chooses the best checkpoint.

    Raises:
        UsageError: if the folder cannot be written, is in use, or holds a run although ``train.resume`` is none.
    """

    def __init__(self, settings: Any, score: str, higher_is_better: bool) -> None:
        self.settings, self.path = settings, Path(settings.train.run_dir)
        self.checkpoints = self.path / "checkpoints"
        self.writes = idist.get_rank() == 0
        self.records = Records(f"val_{score}", higher_is_better)
        self.resumed_from: str | None = None
        self.stopped = False
        """whether a signal ended the run after a checkpoint"""
        self.exit_code = 0
        self.writer = checkpoints.Writer()
        self.before_save: list[Callable[[], None]] = []
        """called on every rank before a checkpoint is saved"""
        self.started_at = time.perf_counter()
        self.opened = open_run_directory(settings) if self.writes else Opened()
        if refusal := collectives.from_rank_zero(self.opened.refusal):
            raise UsageError(refusal, 1)
        self.tracker = Tracker(self.path)
        logger.setLevel(logging.INFO if self.writes else logging.WARNING)
        logger.propagate = False
        logger.handlers[:] = create_handlers(LogFile(self.path / "log.txt") if self.writes else None)
        # This process prints the error itself.
        logging.getLogger("ignite.engine").setLevel(logging.CRITICAL)
        for warning in self.opened.warnings:
            logger.warning("%s", warning)
        self.start_from = find_start(self.opened, self.checkpoints)
        """the checkpoint that the run resumes from, or an empty text"""

    def __exit__(self, *_: object) -> None:
        self.writer.close()
        self.tracker.close()
        if self.opened.lock:
            self.opened.lock.close()

    def track(
        self,
        trainer: Engine,
        model: nn.Module,
        average: nn.Module | None = None,
        unchanged: Mapping[str, Any] | None = None,
        **others: checkpoints.Stateful,
    ) -> None:
        """Declare what a checkpoint contains; each part has ``state_dict`` and ``load_state_dict``.

        Args:
            average: a moving average of the model, if that is evaluated and kept as the best.
            unchanged: facts that must be the same when the run resumes, such as the size of the data.
        """
        self.trainer, self.model, self.evaluated = trainer, model, average or model
        self.meter = Meter(trainer, self.settings.data.batch_size)
        score = {"SCORE": self.records.score, "HIGHER_IS_BETTER": self.records.higher_is_better}
        facts = checkpoints.Unchanged({**(unchanged or {}), **score})
        self.state: dict[str, checkpoints.Stateful] = {
            "run": facts,
            "trainer": trainer,
            "model": model,
            **others,
            "meter": self.meter,
        }
        if average:
            self.state["average"] = average
        for extension in extensions:
            extension(self)

    @property
    def iteration(self) -> int:
        """Steps done."""
        return int(self.trainer.state.iteration)

    def initialize(self, model: nn.Module) -> None:
        """Give the model the weights of ``train.init_from``, unless the run resumes. Call it before ``distribute``."""
        if self.settings.train.init_from and not self.start_from:
            checkpoints.initialize(model, Path(self.settings.train.init_from))

    def resume(self) -> None:
        """Restore the checkpoint to resume from, if any, and the records up to it."""
        if found := self.start_from:
            self.resumed_from = found
            checkpoints.load(Path(found), self.state)
            logger.info("resumed from %s at step %s", found, self.iteration)
        if self.writes:
            self.records.read(self.path / "metrics.jsonl", self.iteration)
        self.records.all = collectives.from_rank_zero(self.records.all)
        if self.is_evaluated():
            self.meter.reset()

    @staticmethod
    def load(checkpoint: str, model: nn.Module) -> None:
        """Give a model the weights of a checkpoint: of the average, if the run evaluated one."""
        checkpoints.load(Path(checkpoint), {"model": model})

    def is_evaluated(self) -> bool:
        """Return whether the current step has a record."""
        return self.records.last_step() == self.iteration

    def is_out_of_patience(self) -> bool:
        """Return whether ``train.patience`` evaluations have passed since the best one."""
        patience = self.settings.train.patience
        return patience is not None and self.records.since_best() >= patience

    def begin(self) -> None:
        """Write config.yaml: from here on the folder belongs to these settings, and what is later than this step goes."""
        if self.writes:
            self._begin_to_write()
        lacks_best = self.is_evaluated() and not self._file("best", self.iteration).exists()
        if collectives.from_rank_zero(lacks_best):
            self._save_best_if_due()

    def _begin_to_write(self) -> None:
        for draft in [*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")]:
            remove(draft)
        for name in ("stopped", "summary.json"):
            remove(self.path / name)
        for file in saved_checkpoints(self.checkpoints, "*"):
            if step_of(file) > self.iteration:
                logger.warning("%s is from a later step, renamed to %s", file, checkpoints.put_aside(file, "replaced"))
        self.records.rewrite(self.path / "metrics.jsonl")
        steps = Records("iteration")
        steps.read(self.path / "steps.jsonl", self.iteration)
        steps.rewrite(self.path / "steps.jsonl")
        write(self.path / "config.yaml", yaml.safe_dump(plain(self.settings), sort_keys=False))
        self.tracker.begin(plain(self.settings), self.iteration)

    def save(self) -> None:
        """Save a checkpoint. Every rank must call it.

        Raises:
            UsageError: if the loss or a weight is NaN or inf, or the ranks' weights differ; nothing is saved.
        """
        self.writer.wait()
        for action in self.before_save:
            action()
        self.meter.read()
        self.require_finite(self.meter.loss, check_weights=True)
        # Such as the statistics of BatchNorm, before one rank saves them or each evaluates with its own.
        collectives.broadcast([*nn.ModuleList([self.model, self.evaluated]).buffers()])
        collectives.require_same_trainable(self.model)
        collectives.require_equal_weights(self.model, self.iteration)
        self._save("last", self.state, keep=2)
        self.meter.restart_clock()

    def save_and_wait(self) -> None:
        """Save a checkpoint and wait until it is on disk: a launcher stops all ranks when the first leaves."""
        self.save()
        collectives.run_on_rank_zero(self.writer.wait)

    def require_finite(self, loss: float, check_weights: bool = False) -> None:
        """Raise UsageError on every rank if the loss, or a weight, is NaN or inf."""
        what = "" if math.isfinite(loss) else f"the loss is {loss:g}"
        if not what and check_weights and collectives.any_rank(not collectives.is_finite(self.model)):
            what = "weights are NaN or inf"
        if what:
            self.writer.wait()
            saved = saved_checkpoints(self.checkpoints, "last")
            then = f"resumes from {saved[-1]}" if saved else "starts anew"
            fix = f"Lower optim.lr, set optim.clip_norm or check the data; the same command {then}."
            raise UsageError(f"{what} after step {self.iteration}. {fix}", 1)

    def _save(self, kind: str, parts: Mapping[str, checkpoints.Stateful], keep: int) -> None:
        old = checkpoints.outdated(self.checkpoints, kind, self.iteration, keep)
        checkpoints.current.save(self.writer, parts, self._file(kind, self.iteration), old)

    def _save_best_if_due(self) -> None:
        if self.records.since_best() == 0 and self.records.has_score():
            self._save("best", {"model": self.evaluated, "trainer": self.trainer}, keep=1)

    def _file(self, kind: str, step: int) -> Path:
        return self.checkpoints / f"{kind}_{step}{checkpoints.current.suffix}"

    def record(self, record: Record) -> None:
        """Add an evaluation to metrics.jsonl, and save the best checkpoint if it has the best score."""
        record = {name: significant(value) if isinstance(value, float) else value for name, value in record.items()}
        if broken := [name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)]:
            logger.warning("%s: NaN or inf; check the validation data", ", ".join(broken))
        self.records.add(record)
        self._log("metrics.jsonl", "eval", record)
        self.meter.reset()
        self._save_best_if_due()
        self.meter.restart_clock()

    def log_step(self, record: Record) -> None:
        """Add a line to steps.jsonl."""
        self.writer.check()
        self._log("steps.jsonl", "train", record)

    def _log(self, name: str, group: str, record: Record) -> None:
        if self.writes:
            try:
                Records.append(self.path / name, record)
            except OSError as error:
                raise unwritable(self.path / name, error) from None
            self.tracker.log({f"{group}/{key}": value for key, value in record.items()}, record["iteration"])

    def stop(self) -> None:
        """Note that the run stopped after a checkpoint, and set the exit code that says so."""
        self.stopped = True
        if self.writes:
            (self.path / "stopped").touch()
        # Other nodes may not see the file in time.
        supervised = os.environ.get(process.SUPERVISED) and idist.get_nnodes() == 1
        self.exit_code = 0 if supervised else process.EXIT_RESUMABLE

    def finish(self, task: Task) -> int:
        """Write summary.json and curves.png; return the exit code."""
        facts = {"resumed_from": self.resumed_from, "weights_difference": collectives.weights_difference(self.model)}
        collectives.run_on_rank_zero(self.writer.wait)
        if self.writes:
            seconds = round(time.perf_counter() - self.started_at, 3)
            write_summary(self.path, self.records, {"wall_time_s": seconds, **facts}, self.settings, task)
            best = self._file("best", self.records.best()["iteration"]) if self.records.all else None
            self.tracker.finish(self.path / "curves.png", best if best and best.exists() else None)
            remove(self.path / "stopped")
        return 0


def find_start(opened: Opened, folder: Path) -> str:
    """Return the checkpoint to resume from, or an empty text: rank 0 chooses, as nodes may see other files."""
    found = opened.start_from or checkpoints.newest(folder) if idist.get_rank() == 0 else None
    return str(collectives.from_rank_zero(str(found or "")))
