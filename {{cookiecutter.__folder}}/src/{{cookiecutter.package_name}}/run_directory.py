"""The folder of one run, and all that is kept in it but the checkpoints themselves."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import ignite.distributed as idist
import yaml

from . import collectives, distributed, storage
from .background import Background
from .changes import Change, changed_settings, changes_results
from .config import Config, to_dict
from .curves import draw_curves
from .distributed import backend, hardware, launcher
from .errors import UsageError
from .task import objective
from .tracking import Tracking

logger = logging.getLogger(__package__)

Record = dict[str, Any]


class RunDirectory:
    """The folder of one run; rank 0 alone writes it, and locks it until it is closed.

    It holds config.yaml, metrics.jsonl, steps.jsonl, summary.json, curves.png, log.txt and checkpoints/.
    """

    def __init__(self, config: Config) -> None:
        """Open the folder on every rank.

        Raises:
            UsageError: if it cannot be written, is being written by another training, or holds a run although
                ``train.resume`` is none, or a checkpoint of another run.
        """
        self.config = config
        self.path = Path(config.train.run_dir)
        self.checkpoints = self.path / "checkpoints"
        self.records: list[Record] = []
        self.writes = idist.get_rank() == 0
        self.started = time.perf_counter()
        self.changes: list[Change] = []
        self.is_started_again = False
        """with the same ``train.resume`` as before; only rank 0 knows"""
        self.warnings: list[str] = []
        self.lock: IO[str] | None = None
        self.background = Background()
        self.tracking = Tracking(self.path)
        _refuse(self._open() if self.writes else "", exit_code=1)
        self._start_logging()

    def _open(self) -> str:
        """Make the folder; return why it cannot be used, or nothing."""
        path, resume = self.path, self.config.train.resume
        try:
            kept = any(storage.saved_checkpoints(self.checkpoints, kind) for kind in ("last", "best"))
            if resume == "none" and (kept or (path / "config.yaml").exists()):
                return f"{path} holds a run already: choose another train.run_dir, or --train.resume auto to resume it"
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.lock, lacking = storage.lock(path / storage.LOCK)
            if (path / "config.yaml").exists():
                self.changes = self._compare((path / "config.yaml").read_text(errors="replace"))
                self.is_started_again = all(change.name != "train.resume" for change in self.changes)
                kept = not self.is_started_again
            is_of_another = Path(resume).absolute().parent != self.checkpoints.absolute()
            if kept and is_of_another and storage.is_checkpoint(Path(resume)):
                return f"{path} holds a run already: choose another train.run_dir for one that begins from {resume}"
            if not (path / "config.yaml").exists() and storage.saved_checkpoints(self.checkpoints, "last"):
                text = "is gone: it is written again with these settings, whether they have changed or not"
                self.warnings.append(f"{path / 'config.yaml'} {text}")
        except UsageError as error:
            return str(error)
        except OSError as error:
            return f"train.run_dir {path} cannot be written ({error.strerror}): choose another one"
        if lacking:
            self.warnings.append(f"{path} cannot be locked ({lacking}): let no other training write there")
        if self.changes:
            self.warnings.append(f"settings changed since this run began: {', '.join(map(str, self.changes))}")
        return ""

    def _compare(self, text: str) -> list[Change]:
        """Return how the settings differ from those in ``text``; where it is broken, warn and return none."""
        try:
            return changed_settings(dict(yaml.safe_load(text)), to_dict(self.config))
        except (yaml.YAMLError, AttributeError, TypeError, ValueError):
            self.warnings.append(f"{self.path / 'config.yaml'} is damaged: it is written again with these settings")
            return []

    def close(self) -> None:
        """Let others write the folder, when this process has written all."""
        self.background.close()
        self.tracking.close()
        if self.lock:
            self.lock.close()

    def _start_logging(self) -> None:
        logger.setLevel(logging.DEBUG if self.writes else logging.WARNING)
        logger.propagate = False
        # It says again what the process itself says at its end.
        logging.getLogger("ignite.engine").setLevel(logging.CRITICAL)
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
        rank = f"[rank {idist.get_rank()}] " if not self.writes else ""
        handlers: list[logging.Handler] = [logging.StreamHandler()]
        # Where a bar moves, it says what the line of every log point would.
        handlers[0].setLevel(logging.INFO if sys.stderr.isatty() else logging.DEBUG)
        if self.writes:
            handlers.append(storage.LogFile(self.path / "log.txt"))
        for handler in handlers:
            handler.setFormatter(logging.Formatter(f"%(asctime)s {rank}%(warning)s%(message)s", "%H:%M:%S"))
            handler.addFilter(_marked)
            logger.addHandler(handler)
        for warning in self.warnings:
            logger.warning("%s", warning)

    def begin(self, iteration: int) -> None:
        """Write config.yaml: from here on, after so many steps, these settings are those of the run; later records go."""
        if self.writes:
            (self.path / "stopped").unlink(missing_ok=True)
            for folder in (self.path, self.checkpoints):
                storage.remove_drafts(folder)
            # It is that of a shorter training, with other settings.
            (self.path / "summary.json").unlink(missing_ok=True)
            storage.write(self.path / "config.yaml", yaml.safe_dump(to_dict(self.config), sort_keys=False))
            if (file := self.path / "steps.jsonl").exists():
                kept = [record for record in self._read_lines(file, ("iteration",)) if record["iteration"] <= iteration]
                storage.write(file, "".join(storage.to_json(record) + "\n" for record in kept))
            self.tracking.begin(to_dict(self.config), iteration)

    def refuse_changes(self, limit: str) -> None:
        """Refuse settings that would have changed what a finished run has learned.

        Args:
            limit: the setting that has ended it.

        Raises:
            UsageError: with the settings that differ.
        """
        refusal = ""
        if any(changes_results(change, self.config.distributed.strategy) for change in self.changes):
            changes = ", ".join(map(str, self.changes))
            fix = f"choose another train.run_dir, or raise {limit} alone to train this one longer"
            refusal = f"{self.path} has no steps left to do, and was trained with other settings ({changes}): {fix}"
        _refuse(refusal, exit_code=2)

    def take_up_records(self, iteration: int) -> None:
        """Read the records up to the checkpoint that is resumed; none, if the run was killed before it had one."""
        file = self.path / "metrics.jsonl"
        if file.exists():
            records = self._read_lines(file, ("iteration", "epoch", "train_loss", "val_loss", f"val_{objective.SCORE}"))
            self.records = [record for record in records if record["iteration"] <= iteration]

    def share_record(self, iteration: int) -> bool:
        """Tell every rank whether rank 0 has read the record of an evaluation after so many steps, which all have then."""
        mine = [record for record in self.records if record["iteration"] == iteration]
        # A node may have an older view of the file.
        found = backend.all_gather_object(mine)[0]
        self.records = [record for record in self.records if record["iteration"] < iteration] + found
        return bool(found)

    def _read_lines(self, file: Path, names: Sequence[str]) -> list[Record]:
        """Return the records of a file up to the first that lacks a number of these ``names``, which rank 0 warns of."""
        records: list[Record] = []
        for number, line in enumerate(file.read_text(errors="replace").splitlines(keepends=True), 1):
            try:
                record = storage.from_json(line)
                for name in names:
                    float(record[name])
            except (ValueError, KeyError, TypeError, AttributeError):
                # A kill leaves half a last line.
                if self.writes and line.endswith("\n"):
                    logger.warning("line %s of %s is damaged, and left out with those after it", number, file)
                break
            records.append(record)
        return records

    def append(self, record: Record) -> None:
        """Add one evaluation to metrics.jsonl."""
        self.records.append(record)
        if self.writes:
            broken = [name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)]
            if broken:
                best = "" if may_be_best(record) else ", so that this evaluation cannot be the best"
                logger.warning("%s: not a number%s; look at the validation data", ", ".join(broken), best)
            lines = "".join(storage.to_json(record) + "\n" for record in self.records)
            storage.write(self.path / "metrics.jsonl", lines)
            self.tracking.log("eval", record)

    def append_step(self, record: Record) -> None:
        """Add one line to steps.jsonl.

        Raises:
            UsageError: if it cannot be written, or something else could not since the last one.
        """
        self.background.check()
        if self.writes:
            path = self.path / "steps.jsonl"
            try:
                with path.open("a") as file:
                    file.write(storage.to_json(record) + "\n")
            except OSError as error:
                raise storage.unwritable(path, error) from None
            self.tracking.log("train", record)

    def best(self) -> Record:
        """Return the evaluation with the best score, the first of equal ones."""
        return max(self.records, key=score)

    def is_out_of_patience(self) -> bool:
        """Tell every rank whether ``train.patience`` evaluations have passed since the best one."""
        patience = self.config.train.patience
        if patience is None:
            return False
        since = len(self.records) - 1 - self.records.index(self.best()) if self.records else 0
        # Rank 0 decides: only its records are sure to be those of the run.
        return collectives.all_reduce_any(self.writes and since >= patience)

    def is_finished(self, iteration: int) -> bool:
        """Tell every rank whether summary.json is that of so many steps."""
        file = self.path / "summary.json"
        missing = self.writes and not (file.exists() and _iteration_in(file) == iteration)
        return not collectives.all_reduce_any(missing)

    def mark_stopped(self) -> None:
        """Leave a mark for those who cannot see the exit code: the run has a checkpoint, and can be resumed."""
        if self.writes:
            (self.path / "stopped").touch()

    def finish(self, summary: Record, title: str) -> None:
        """Write summary.json (the last record and ``summary``) and draw curves.png under ``title``."""
        if not self.writes:
            return
        (self.path / "stopped").unlink(missing_ok=True)
        last = self.records[-1] if self.records else {}
        place: Record = {
            "backend": self.config.distributed.backend,
            "launcher": launcher.NAME,
            "hardware": hardware.NAME,
            "device": distributed.device_name(),
            "world_size": idist.get_world_size(),
            "nnodes": idist.get_nnodes(),
            "wall_time_s": round(time.perf_counter() - self.started, 3),
            "versions": distributed.versions(),
        }
        if self.records:
            best, key = self._best_and_its_checkpoint(), f"val_{objective.SCORE}"
            place["best"] = best
            draw_curves(self.records, self.path / "curves.png", title)
            text = "done in %.0f s: %s %.4g at the end, best %.4g after step %s (%s); all is in %s"
            values = (last[key], best[key], best["iteration"], best["checkpoint"] or "no checkpoint")
            logger.info(text, place["wall_time_s"], key, *values, self.path)
            kept = self.path / best["checkpoint"] if best["checkpoint"] else None
            self.tracking.finish(self.path / "curves.png", kept)
        storage.write(self.path / "summary.json", storage.to_json({**last, **place, **summary}, indent=2) + "\n")

    def _best_and_its_checkpoint(self) -> Record:
        """Return the best evaluation, with its checkpoint: None, with a warning, if there is none."""
        best = self.best()
        if not may_be_best(best):
            logger.warning("no evaluation has a score that is a number: there is no best checkpoint")
            return {**best, "checkpoint": None}
        kept = {storage.step_of(file): file for file in storage.saved_checkpoints(self.checkpoints, "best")}
        unknown = kept.keys() - {record["iteration"] for record in self.records}
        if best["iteration"] in kept:
            return {**best, "checkpoint": f"checkpoints/{kept[best['iteration']].name}"}
        if not unknown:
            text = "the checkpoint of step %s is lost: the best one that is left is of a worse evaluation"
            logger.warning(text, best["iteration"])
            return {**best, "checkpoint": None}
        # It is better than all that were measured since.
        step = max(unknown)
        checkpoint = f"checkpoints/{kept[step].name}"
        logger.warning("metrics.jsonl lacks the evaluation of the best checkpoint, %s", checkpoint)
        return {"iteration": step, f"val_{objective.SCORE}": math.nan, "checkpoint": checkpoint}


def score(record: Record) -> float:
    """Return what is the larger, the better the weights are."""
    value = float(record[f"val_{objective.SCORE}"])
    if math.isnan(value):
        return -math.inf
    return value if objective.HIGHER_IS_BETTER else -value


def may_be_best(record: Record) -> bool:
    """Tell whether the score of an evaluation is a number."""
    return score(record) > -math.inf


def _marked(record: logging.LogRecord) -> bool:
    """Let a warning be told from what is only said."""
    record.warning = "warning: " if record.levelno == logging.WARNING else ""
    return True


def _refuse(refusal: str, exit_code: int) -> None:
    """Raise UsageError on every rank if rank 0 gives a sentence that is not empty."""
    if refusal := collectives.text_of_rank_zero(refusal):
        raise UsageError(refusal, exit_code)


def _iteration_in(file: Path) -> Any:
    try:
        return json.loads(file.read_text()).get("iteration")
    except (ValueError, AttributeError):
        return None
