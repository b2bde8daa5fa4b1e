"""Handlers that train.py attaches to its Engine: log, profile, stop signals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events

from .process import catching_stop_signals, collectives, hardware, ignore_stop_signals, launcher
from .report import logger
from .report.log import significant
from .state.run import Run

# Steps that a profile of torch records, after as many that warm up.
TRACED_STEPS = 10


def attach_log(trainer: Engine, run: Run, optimizer: torch.optim.Optimizer, last_step: int) -> None:
    """Log the means of what the step returns every ``train.log_every`` steps, and profile if ``train.profile`` says so.

    Writes a line of the log and one of steps.jsonl.
    """
    attach_profiler(trainer, run.path / "profile", run.settings.train.profile)

    @trainer.on(Events.ITERATION_COMPLETED(every=run.settings.train.log_every))
    def log() -> None:
        lap = run.meter.take_lap()
        run.require_finite(lap.mean("loss"))
        collectives.require_same_trainable(run.model)
        groups = optimizer.param_groups
        rates = {f"lr_{group.get('name', number)}": group["lr"] for number, group in enumerate(groups)}
        rates = rates if len({*rates.values()}) > 1 else {"lr": groups[0]["lr"]}
        speed, waited = lap.speed(run.settings.data.batch_size), lap.waited / max(lap.seconds, 1e-9)
        values = {name: significant(lap.mean(name)) for name in lap.values}
        record = {"epoch": trainer.state.epoch, "iteration": trainer.state.iteration, **values, **rates}
        record |= {"samples_per_second": significant(speed), "data_wait": significant(waited, 3)}
        if (memory := hardware.peak_memory()) is not None:
            record["device_memory_mib"] = round(memory / 2**20)
        run.directory.add("steps.jsonl", "train", record)
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in {**values, **rates}.items())
        text = "step %d/%d  %s  %.0f samples/s, %.0f %% waiting for data"
        logger.info(text, trainer.state.iteration, last_step, numbers, speed, 100 * waited)


@contextmanager
def attach_stop(trainer: Engine, run: Run, last_step: int) -> Iterator[None]:
    """Handle stop signals inside the ``with`` block: save a checkpoint and end the run on every rank.

    Signals are handled every ``train.log_every`` steps, because the ranks have to agree: one may reach one rank only.
    """
    with catching_stop_signals() as received:

        @trainer.on(Events.ITERATION_COMPLETED(every=run.settings.train.log_every))
        def stop_if_agreed() -> None:
            if trainer.state.iteration < last_step and collectives.any_rank(bool(received)):
                run.save()
                place = {"run_dir": run.path, "nnodes": idist.get_nnodes(), "nproc": idist.get_nproc_per_node()}
                text = "stopped by a signal after step %s, checkpoint saved; %s resumes"
                logger.info(text, trainer.state.iteration, launcher.RESUME.format(**place))
                run.stop()
                trainer.terminate()
                # Another signal must not change the exit code.
                ignore_stop_signals()

        yield


def attach_profiler(trainer: Engine, folder: Path, kind: str) -> None:
    """Write a profile to a folder.

    Args:
        kind: ignite's of ``handlers`` or, with ``basic``, of events; a ``torch`` trace of some steps; or ``none``.
    """
    if kind == "none":
        return
    folder.mkdir(exist_ok=True)
    rank = idist.get_rank()
    if kind == "torch":
        schedule = torch.profiler.schedule(wait=0, warmup=TRACED_STEPS, active=TRACED_STEPS)
        ready = lambda profiler: profiler.export_chrome_trace(str(folder / f"trace-rank{rank}.json"))
        profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=ready)
        trainer.add_event_handler(Events.STARTED, lambda: profiler.start())
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: profiler.step())
        trainer.add_event_handler(Events.COMPLETED, lambda: profiler.stop())
        return
    from ignite.handlers import BasicTimeProfiler, HandlersTimeProfiler

    times: Any = BasicTimeProfiler() if kind == "basic" else HandlersTimeProfiler()
    times.attach(trainer)

    @trainer.on(Events.COMPLETED)
    def write() -> None:
        # ignite needs pandas to write its tables, but not to print them.
        with (folder / f"{kind}-rank{rank}.txt").open("w") as file, redirect_stdout(file):
            times.print_results(times.get_results())
        if rank == 0:
            times.print_results(times.get_results())
