"""What happens around the steps: checkpoints, progress and stop signals."""

from __future__ import annotations

import logging
import math
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import collectives, early_signals
from .distributed import backend
from .engines import LossMeter
from .errors import UsageError
from .run_directory import RunDirectory
from .task import objective

logger = logging.getLogger(__package__)


def create_checkpoints(run: RunDirectory, trainer: Engine, state: dict[str, Any]) -> tuple[Checkpoint, Checkpoint]:
    """Return what saves ``state`` (the last two are kept) and what saves the best weights (one is kept).

    Both belong to the state themselves, so that a resumed run removes the old files too. Every rank must call them:
    some backends save together.
    """

    def step(engine: Engine, event: Any) -> int:
        return trainer.state.iteration

    best = Checkpoint(
        {"model": state["model"], "trainer": trainer},
        backend.disk_saver(run.checkpoints),
        filename_pattern="best_{global_step}.pt",
        global_step_transform=step,
        score_function=lambda engine: _score(run.records[-1]),
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


def _score(record: dict[str, Any]) -> float:
    """Return what is the larger, the better the weights are."""
    score = float(record[f"val_{objective.SCORE}"])
    if math.isnan(score):
        return -math.inf
    return score if objective.HIGHER_IS_BETTER else -score


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
                logger.info("stopped by a signal after step %s, checkpoint saved: the same command resumes", step)
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
