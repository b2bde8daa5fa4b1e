"""The run directory: opening, locking and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import ignite.distributed as idist
import yaml

from ..process import collectives
from ..report import UsageError, logger
from ..report.log import start_log
from ..report.tracking import Tracker
from . import LOCK, changed_settings, checkpoints, lock, plain, remove, saved_checkpoints, step_of, write
from .checkpoints import Stateful
from .records import Evaluations, Record, append, read_records, to_lines


class RunDirectory:
    """The folder ``train.run_dir``, which rank 0 locks and writes. Opening it starts the log. Every rank calls its methods.

    It holds config.yaml, metrics.jsonl, steps.jsonl, summary.json, curves.png, log.txt and checkpoints/.

    Raises:
        UsageError: if it cannot be written, is in use, or holds a run although ``train.resume`` is none.
    """

    def __init__(self, settings: Any) -> None:
        self.settings, self.path = settings, Path(settings.train.run_dir)
        self.checkpoints = self.path / "checkpoints"
        self.writes = idist.get_rank() == 0
        self.start_from = ""
        """on rank 0, the checkpoint that ``train.resume`` names, unless the folder has newer ones of this run"""
        self.lock: IO[str] | None = None
        self.tracker = Tracker(self.path)
        start_log()
        collectives.run_on_rank_zero(self._open)

    def _open(self) -> None:
        resume, file = self.settings.train.resume, self.path / "config.yaml"
        has_checkpoints = bool(saved_checkpoints(self.checkpoints, "*"))
        refusal = f"{self.path} already holds a run. Choose another train.run_dir"
        if resume == "none" and (has_checkpoints or file.exists()):
            raise UsageError(f"{refusal}, or train.resume auto.")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.lock = lock(self.path / LOCK)
            start_log(self.path / "log.txt")
        except OSError as error:
            fix = "Choose another one."
            raise UsageError(f"train.run_dir {self.path} cannot be written ({error.strerror}). {fix}") from None
        changes = changed_settings(file, plain(self.settings))
        if resume not in ("auto", "none") and (not has_checkpoints or "train.resume" in changes):
            if has_checkpoints and Path(resume).absolute().parent != self.checkpoints.absolute():
                raise UsageError(f"{refusal} for one that starts from {resume}.")
            self.start_from = resume
        if changes:
            logger.warning("settings changed since this run started: %s", ", ".join(changes.values()))

    def claim(self, evaluations: Evaluations, step: int) -> None:
        """Write config.yaml, and remove files and records of steps after ``step``."""
        if not self.writes:
            return
        for name in (".*.part", "stopped", "summary.json", "checkpoints/.*.part"):
            for file in self.path.glob(name):
                remove(file)
        for file in saved_checkpoints(self.checkpoints, "*"):
            if step_of(file) > step:
                logger.warning("%s is from a later step, renamed to %s", file, checkpoints.put_aside(file, "replaced"))
        steps = read_records(self.path / "steps.jsonl", step)
        write(self.path / "metrics.jsonl", to_lines(*evaluations.all))
        write(self.path / "steps.jsonl", to_lines(*steps))
        write(self.path / "config.yaml", yaml.safe_dump(plain(self.settings), sort_keys=False))
        self.tracker.begin(plain(self.settings), step)

    def checkpoint_to_resume(self) -> str:
        """Return the checkpoint to start from, or an empty text; on rank 0 only. Damaged ones are renamed."""
        return self.start_from or str(checkpoints.newest(self.checkpoints) or "") if self.writes else ""

    def checkpoint(self, kind: str, step: int) -> Path:
        """Return the path of a checkpoint of a kind, ``last`` or ``best``."""
        return self.checkpoints / f"{kind}_{step}{checkpoints.current.suffix}"

    def save(self, kind: str, step: int, parts: Mapping[str, Stateful], keep: int) -> None:
        """Save a checkpoint, and then remove all but the last ``keep`` of its kind."""
        collectives.run_on_rank_zero(checkpoints.current.collect(parts, self.checkpoint(kind, step)))
        if self.writes:
            older = [file for file in saved_checkpoints(self.checkpoints, kind) if step_of(file) <= step]
            for file in older[:-keep]:
                remove(file)

    def best(self, evaluations: Evaluations) -> Path | None:
        """Return the checkpoint of the best evaluation, if there is one."""
        path = self.checkpoint("best", evaluations.best()["iteration"]) if evaluations.all else None
        return path if path and path.exists() else None

    def add(self, name: str, group: str, record: Record) -> None:
        """Add a record to the file ``name``, and log it to the tracker in a group."""
        if self.writes:
            append(self.path / name, record)
            self.tracker.log({f"{group}/{key}": value for key, value in record.items()}, record["iteration"])

    def finish(self, best: Path | None) -> None:
        """Give the tracker the curves and the best checkpoint of a finished run."""
        self.tracker.finish(self.path / "curves.png", best)
        remove(self.path / "stopped")

    def close(self) -> None:
        """Release the lock."""
        self.tracker.close()
        if self.lock:
            self.lock.close()
