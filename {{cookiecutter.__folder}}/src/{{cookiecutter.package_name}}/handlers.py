"""What happens around the steps: progress and stop signals."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from . import collectives, early_signals, storage
from .distributed import hardware, launcher
from .errors import UsageError
from .meter import Meter
from .run_directory import RunDirectory

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__package__)

# Of the loss in fp16: thirty steps without usable gradients bring it from its beginning down to here.
SMALLEST_SCALE = 2.0**-14


class StepLog:
    """Tells of the training every so many steps: a line of the log, one of steps.jsonl, and a bar on a terminal."""

    def __init__(self, trainer: Engine, meter: Meter, optimizer: torch.optim.Optimizer, run: RunDirectory) -> None:
        self.trainer, self.meter, self.optimizer, self.run = trainer, meter, optimizer, run
        self.bar = _bar() if idist.get_rank() == 0 and sys.stderr.isatty() else None

    def attach(self, every: int, last_step: int) -> None:
        """Read the meter every so many steps, which waits for the device and the other ranks."""
        state = self.trainer.state

        @self.trainer.on(Events.ITERATION_COMPLETED(every=every))
        def tell() -> None:
            lap = self.meter.lap()
            require_finite(lap.loss, self.trainer, self.run)
            # One rate, or one for each group of parameters where they differ.
            groups = self.optimizer.param_groups
            names = [group.get("name", number) for number, group in enumerate(groups)]
            rates = {f"lr_{name}" if name else "lr": group["lr"] for name, group in zip(names, groups, strict=True)}
            rates = rates if len(set(rates.values())) > 1 else {"lr": groups[0]["lr"]}
            record: dict[str, Any] = {
                "epoch": state.epoch,
                "iteration": state.iteration,
                "loss": significant(lap.loss),
                **rates,
                "samples_per_second": significant(lap.samples_per_second),
                "data_wait": significant(lap.data_wait, 3),
            }
            others = {name: significant(float(value)) for name, value in state.metrics.items()}
            record |= others
            memory = hardware.peak_memory()
            if memory is not None:
                record["device_memory_mib"] = round(memory / 2**20)
            self.run.append_step(record)
            # A bar shows as much: on a terminal, these lines would only hide those of the evaluations.
            logger.debug(
                "step %d/%d  loss %.4g  %s  %s%.0f samples/s, %.0f %% waiting for data",
                state.iteration,
                last_step,
                lap.loss,
                "  ".join(f"{name} {rate:.3g}" for name, rate in rates.items()),
                "".join(f"{name} {value:.4g}  " for name, value in others.items()),
                lap.samples_per_second,
                100 * lap.data_wait,
            )
            if self.bar:
                self.bar.update(
                    self.bar.task_ids[0],
                    completed=state.iteration,
                    total=last_step,
                    epoch=state.epoch,
                    loss=lap.loss,
                )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar inside the ``with`` block, where a person looks at rank 0's terminal."""
        if not self.bar:
            yield
            return
        with self.bar:
            # While a bar is shown, what is written to this stream appears above it.
            screens = [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]
            streams = [handler.setStream(sys.stderr) for handler in screens]
            try:
                yield
            finally:
                for handler, stream in zip(screens, streams, strict=True):
                    handler.setStream(stream)


def _bar() -> Progress:
    # Only where it is seen: importing rich takes time.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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


@torch.no_grad()
def are_finite(weights: list[Tensor]) -> bool:
    """Tell whether all weights are numbers; there is one wait for the device, however many weights there are."""
    if not weights:
        return True
    # A sum is quicker, and no number if one of them is none, or if it is too large itself.
    if bool(torch.stack([weight.sum().isfinite() for weight in weights]).all()):
        return True
    return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())


def require_finite(
    loss: float,
    trainer: Engine,
    run: RunDirectory,
    model: nn.Module | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> None:
    """Refuse to continue, and to save, with a loss or weights of a model that are not numbers.

    The same where a ``scaler`` has left out so many steps in a row, as their gradients were none, that it is of no use.

    Raises:
        UsageError: on every rank, as the loss is that of all.
    """
    broken = model is not None and not are_finite([collectives.local(weight) for weight in model.parameters()])
    if model and collectives.is_shared_out(model):
        broken = collectives.all_reduce_any(broken)
    useless = False
    if scaler and scaler.is_enabled():
        # Each rank that trains apart has a scale of its own.
        useless = collectives.all_reduce_any(scaler.get_scale() < SMALLEST_SCALE)
    if math.isfinite(loss) and not broken and not useless:
        return
    what = "weights are not numbers" if broken else "gradients of many steps in a row are not numbers"
    what = what if math.isfinite(loss) else f"loss is {loss:g}"
    run.background.wait()
    saved = storage.saved_checkpoints(run.checkpoints, "last")
    then = f"resumes from {saved[-1]}, which is from before" if saved else "begins anew, as none was saved"
    raise UsageError(
        f"the {what} after step {trainer.state.iteration}: lower optim.lr, set optim.clip_norm, or look for such numbers in "
        f"the data; the next start {then}",
        1,
    )


def significant(value: float, figures: int = 6) -> float:
    """Return ``value`` to so many significant figures."""
    return float(f"{value:.{figures}g}")


class StopSignals:
    """Turns SIGTERM, SIGUSR1 and Ctrl-C into a checkpoint and an orderly end of all ranks.

    A signal may reach one rank only, so the ranks agree at every log point; it is caught during the training alone:
    before and after, a signal ends the process at once, but for a SIGUSR1 that early_signals.py keeps.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
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
                place = {"run_dir": self.run_dir, "nnodes": idist.get_nnodes(), "nproc": idist.get_nproc_per_node()}
                resume = launcher.RESUME.format(**place)
                logger.info("stopped by a signal after step %s, checkpoint saved: %s resumes", step, resume)
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
        previous = {number: signal.signal(number, remember) for number in early_signals.STOP_SIGNALS}
        self.received = next(iter(early_signals.received), self.received)
        try:
            yield
        finally:
            for number, handler in previous.items():
                # Another signal does not keep a training that has stopped from saying so.
                signal.signal(number, signal.SIG_IGN if self.stopped else handler)
