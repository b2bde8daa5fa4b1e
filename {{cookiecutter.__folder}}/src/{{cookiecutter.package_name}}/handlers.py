"""What happens around the steps: the run directory, logging, progress, checkpoints and stop signals."""

from __future__ import annotations

import json
import logging
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ignite.distributed as idist
import torch
import yaml
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import collectives, distributed, early_signals
from .config import Config, UsageError, changed_settings, to_dict
from .distributed import backend, hardware, launcher
from .engines import LossMeter

logger = logging.getLogger(__package__)

Record = dict[str, Any]


class RunDirectory:
    """The folder of one run; rank 0 alone writes it, each file under another name first.

    It holds config.yaml, metrics.jsonl, summary.json, curves.png, log.txt and checkpoints/.
    """

    def __init__(self, config: Config) -> None:
        """Open the folder on every rank.

        Raises:
            UsageError: if it cannot be written, or holds a run although ``train.resume`` is none.
        """
        self.config = config
        self.path = Path(config.train.run_dir)
        self.checkpoints = self.path / "checkpoints"
        self.records: list[Record] = []
        self.writes = idist.get_rank() == 0
        self.started = time.perf_counter()
        self.changes: list[str] = []
        self.listeners: list[Callable[[Record], None]] = []
        refusal = self._open() if self.writes else ""
        if idist.get_world_size() > 1:
            refusal = str(idist.broadcast(refusal, src=0, safe_mode=True))
        if refusal:
            raise UsageError(refusal, 1)
        self._start_logging()
{%- if cookiecutter.tracker == "tensorboard" %}
        if self.writes:
            self.listeners.append(tensorboard(self.path / "tensorboard"))
{%- endif %}

    def _open(self) -> str:
        """Make the folder; return why it cannot be used, or nothing."""
        path, resume = self.path, self.config.train.resume
        if resume == "none" and (path / "config.yaml").exists():
            return f"{path} holds a run already: choose another train.run_dir, or --train.resume auto to go on"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if (path / "config.yaml").exists():
                self.changes = changed_settings(yaml.safe_load((path / "config.yaml").read_text()), self.config)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            return f"train.run_dir {path} cannot be written ({error.strerror}): choose another one"
        return ""

    def _start_logging(self) -> None:
        logger.setLevel(logging.INFO if self.writes else logging.WARNING)
        logger.propagate = False
        # It says again what the process itself says at its end.
        logging.getLogger("ignite.engine").setLevel(logging.CRITICAL)
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
        rank = f"[rank {idist.get_rank()}] " if not self.writes else ""
        handlers: list[logging.Handler] = [logging.StreamHandler()]
        if self.writes:
            handlers.append(logging.FileHandler(self.path / "log.txt"))
        for handler in handlers:
            handler.setFormatter(logging.Formatter(f"%(asctime)s {rank}%(message)s", "%H:%M:%S"))
            logger.addHandler(handler)
        if self.changes:
            logger.warning("settings changed since this run began: %s", ", ".join(self.changes))

    def begin(self) -> None:
        """Write config.yaml: from here on, the settings of this call are those of the run."""
        if self.writes:
            (self.path / "stopped").unlink(missing_ok=True)
            write_atomically(self.path / "config.yaml", yaml.safe_dump(to_dict(self.config), sort_keys=False))

    def is_recorded(self, iteration: int) -> bool:
        """Tell whether the run has been evaluated after so many steps."""
        return bool(self.records) and self.records[-1]["iteration"] == iteration

    def checkpoint_to_resume(self) -> Path | None:
        """Return the checkpoint to go on from, the same on every rank, as ``train.resume`` says.

        Raises:
            UsageError: if the file that was asked for is not there.
        """
        resume = self.config.train.resume
        found: Path | None = None
        if resume == "auto":
            files = list(self.checkpoints.glob("last_*.pt")) if self.writes else []
            found = max(files, key=_iteration_of, default=None)
        elif resume != "none":
            found = Path(resume)
            if not found.is_file():
                raise UsageError(f"train.resume {resume} is not a file: choose auto, none or a checkpoint")
        if idist.get_world_size() > 1:
            # A node with an older view of the file system must not start from another one.
            found = Path(str(idist.broadcast(str(found or ""), src=0, safe_mode=True) or ""))
            found = None if found == Path() else found
        return found

    def take_up_records(self, iteration: int) -> None:
        """Go on with the records of the run that is being resumed, up to its checkpoint."""
        file = self.path / "metrics.jsonl"
        if file.exists():
            records = [json.loads(line) for line in file.read_text().splitlines()]
            self.records = [record for record in records if record["iteration"] <= iteration]

    def append(self, record: Record) -> None:
        """Add one evaluation to metrics.jsonl."""
        self.records.append(record)
        if self.writes:
            for listener in self.listeners:
                listener(record)
            lines = "".join(json.dumps(record) + "\n" for record in self.records)
            write_atomically(self.path / "metrics.jsonl", lines)

    def is_finished(self, iteration: int) -> bool:
        """Tell every rank whether summary.json is that of so many steps."""
        file = self.path / "summary.json"
        missing = self.writes and not (file.exists() and json.loads(file.read_text()).get("iteration") == iteration)
        return not collectives.all_reduce_any(missing)

    def mark_stopped(self) -> None:
        """Leave a mark for those who cannot see the exit code: the run has a checkpoint, and wants to go on."""
        if self.writes:
            (self.path / "stopped").touch()

    def finish(self, summary: Record) -> None:
        """Write summary.json (the last record and ``summary``) and draw curves.png."""
        if not self.writes:
            return
        (self.path / "stopped").unlink(missing_ok=True)
        last = self.records[-1] if self.records else {}
        place = {
            "backend": self.config.distributed.backend,
            "launcher": launcher.NAME,
            "hardware": hardware.NAME,
            "device": device_name(),
            "world_size": idist.get_world_size(),
            "nnodes": idist.get_nnodes(),
            "wall_time_s": round(time.perf_counter() - self.started, 3),
            "versions": distributed.versions(),
        }
        write_atomically(self.path / "summary.json", json.dumps({**last, **place, **summary}, indent=2) + "\n")
        if self.records:
            draw_curves(self.records, self.path / "curves.png")


def device_name() -> str:
    """Return what this process computes on, as people call it."""
    device = idist.device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that a reader, or a crash, never meets half of it."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text)
    draft.replace(path)


{% if cookiecutter.tracker == "tensorboard" -%}
def tensorboard(folder: Path) -> Callable[[Record], None]:
    """Return a listener that shows every record in TensorBoard: ``tensorboard --logdir runs``."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def listen(record: Record) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, record["iteration"])
        writer.flush()

    return listen


{% endif -%}
def draw_curves(records: list[Record], path: Path) -> None:
    """Draw loss and accuracy over the epochs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = [record["epoch"] for record in records]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(epochs, [record["train_loss"] for record in records], marker=".", label="training")
    left.plot(epochs, [record["val_loss"] for record in records], marker=".", label="validation")
    left.set(xlabel="epoch", ylabel="cross-entropy (nats)", yscale="log")
    left.legend()
    right.plot(epochs, [record["val_accuracy"] for record in records], marker=".", color="C1")
    right.set(xlabel="epoch", ylabel="validation accuracy", ylim=(None, 1))
    right.axhline(max(record["val_accuracy"] for record in records), color="0.7", linewidth=0.8, zorder=0)
    draft = path.with_name(f".{path.name}.part")
    figure.savefig(draft, dpi=150, format="png")
    draft.replace(path)
    pyplot.close(figure)


def create_checkpoints(run: RunDirectory, trainer: Engine, state: dict[str, Any]) -> tuple[Checkpoint, Checkpoint]:
    """Return what saves ``state`` (the last two are kept) and what saves the best weights (one is kept).

    Both belong to the state themselves, so that a resumed run goes on to remove the old files. Every rank must call
    them: some backends save together.
    """

    def step(engine: Engine, event: Any) -> int:
        return trainer.state.iteration

    best = Checkpoint(
        {"model": state["model"], "trainer": trainer},
        backend.disk_saver(run.checkpoints),
        filename_pattern="best_{global_step}.pt",
        global_step_transform=step,
        score_function=lambda engine: run.records[-1]["val_accuracy"],
        n_saved=1,
    )
    last = Checkpoint(
        {**state, "best": best},
        backend.disk_saver(run.checkpoints),
        filename_pattern="last_{global_step}.pt",
        global_step_transform=step,
        n_saved=2,
        include_self=True,
    )
    return last, best


def load_checkpoint(path: Path, objects: dict[str, Any]) -> None:
    """Give ``objects`` their state from ``path``; every rank reads the same file.

    Raises:
        UsageError: if the file is not a checkpoint of this model.
    """
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}: choose one in the checkpoints folder of a run")
    try:
        Checkpoint.load_objects(objects, torch.load(path, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise UsageError(f"{path} is not a checkpoint: choose one in the checkpoints folder of a run") from None
    except Exception as error:
        reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        raise UsageError(f"{path} is not a checkpoint of this model ({reason}): choose another checkpoint") from error


def forget_lost_files(folder: Path, *checkpoints: Checkpoint) -> None:
    """Let ``checkpoints`` no longer count files that are not in ``folder``, as they could not remove them.

    A run that was killed may have removed one and not yet written the next, and a new folder has none of another run's.
    """
    for checkpoint in checkpoints:
        state = checkpoint.state_dict()
        state["_saved"] = [(priority, name) for priority, name in state["_saved"] if (folder / name).exists()]
        checkpoint.load_state_dict(state)


@contextmanager
def progress(trainer: Engine, meter: LossMeter, every: int) -> Iterator[None]:
    """Read the loss of all ranks every so many steps and show it as a bar where a person looks at rank 0's terminal."""
    bar = _bar() if idist.get_rank() == 0 and sys.stderr.isatty() else None

    @trainer.on(Events.ITERATION_COMPLETED(every=every))
    def read() -> None:
        loss = meter.read()
        if bar:
            state = trainer.state
            assert state.epoch_length is not None
            assert state.max_epochs is not None
            total = state.epoch_length * state.max_epochs
            bar.update(bar.task_ids[0], completed=state.iteration, total=total, epoch=state.epoch, loss=loss)

    if not bar:
        yield
        return
    with bar:
        # While a bar is shown, what is written to this stream appears above it.
        screens = [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]
        streams = [handler.setStream(sys.stderr) for handler in screens]
        try:
            yield
        finally:
            for handler, stream in zip(screens, streams, strict=True):
                handler.setStream(stream)


def _bar() -> Progress:
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=None, epoch=0, loss=float("nan"))
    return bar


class StopSignals:
    """Turns SIGTERM, SIGUSR1 and Ctrl-C into a checkpoint and an orderly end of all ranks.

    A signal may reach one rank only, so the ranks agree at every log point; it is caught during the training alone:
    before and after, a signal ends the process at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.stopped = False

    def attach(self, trainer: Engine, save: Callable[[Engine], None], every: int, last_step: int) -> None:
        """Look for a signal every so many steps; after one, call ``save`` and end the training.

        After ``last_step`` there is nothing left to stop.
        """

        @trainer.on(Events.ITERATION_COMPLETED(every=every))
        def stop_if_agreed() -> None:
            if trainer.state.iteration < last_step and collectives.all_reduce_any(self.received is not None):
                save(trainer)
                step = trainer.state.iteration
                logger.info("stopped by a signal after step %s, checkpoint saved: the same command goes on", step)
                self.stopped = True
                trainer.terminate()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals inside the ``with`` block."""

        def remember(number: int, frame: FrameType | None) -> None:
            self.received = number

        if threading.current_thread() is not threading.main_thread():
            # Python lets only the main thread catch signals, and some launchers train in another one.
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        previous = {number: signal.signal(number, remember) for number in numbers}
        self.received = next(iter(early_signals.received), self.received)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.rpartition("_")[2])
