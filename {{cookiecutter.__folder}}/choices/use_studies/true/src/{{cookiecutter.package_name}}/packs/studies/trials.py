"""Start one run after another, each in a folder of its own, and print tables of their results."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

import yaml

from ...config import Config
from ...runtime import UsageError, state
from ...runtime.process import EXIT_RESUMABLE, end_with_parent, hardware, launcher, number_from_environment
from ...runtime.process.supervise import written_at

PACKAGE = __name__.partition(".packs.")[0]
POLL_S = 0.2
# How long a run that a killed study left behind may take to save its checkpoint.
LEFT_BEHIND_S = 60.0
# What the processes of a run print, in its folder.
OUTPUT = "output.txt"
# Settings that do not change what a run learns.
HARMLESS = {"data.num_workers", *(f"train.{name}" for name in ("run_dir", "resume", "log_every", "profile"))}
HARMLESS |= {f"distributed.{name}" for name in ("backend", "device", "nproc_per_node", "timeout_s")}


def nproc_per_node(config: Config) -> int | None:
    """Return the number of processes of each run on a node; None: one for each device that the backend finds."""
    nproc = config.distributed.nproc_per_node or number_from_environment("NPROC_PER_NODE")
    return nproc or hardware.default_nproc_per_node()


def world_sizes(config: Config) -> list[int]:
    """Return every number of processes that a run may have."""
    nproc = nproc_per_node(config)
    return [nproc or 1] if launcher.ELSEWHERE else launcher.size(nproc).world_sizes()


def command(config: Config) -> list[str]:
    """Return the command of a run, without settings: by the launcher or, if that needs a cluster, on this machine."""
    nproc = nproc_per_node(config)
    if launcher.ELSEWHERE:
        return local_command(nproc)
    variables = [f"NPROC_PER_NODE={nproc}"] if nproc else []
    return ["env", *variables, sys.executable, "-m", PACKAGE, "launch"]


def local_command(nproc: int | None) -> list[str]:
    """Return the command of a run in ``nproc`` processes of this machine, without settings."""
    options = ["--distributed.nproc_per_node", str(nproc)] if nproc else []
    return [sys.executable, "-m", PACKAGE, "train", *options]


def share_settings(config: Config, folder: Path, *varied: str) -> list[str]:
    """Write the settings that all runs in a folder share; return the options that read them.

    Args:
        varied: settings that may differ from those of earlier runs.

    Raises:
        UsageError: if earlier runs in the folder have other settings.
    """
    file, settings = folder / "settings.yaml", state.plain(config)
    changes = state.changed_settings(file, settings)
    if found := [text for name, text in changes.items() if name not in HARMLESS | {*varied}]:
        raise UsageError(f"{folder} has other settings ({', '.join(found)}). Choose another train.run_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    state.write(file, yaml.safe_dump(settings, sort_keys=False))
    return ["--config", str(file), "--train.resume=auto"]


def claim(run: Path) -> IO[str] | None:
    """Lock the folder of a run until the file that is returned is closed or this process ends; None: another has it."""
    run.mkdir(parents=True, exist_ok=True)
    with suppress(UsageError):
        return state.lock(run / ".trial", limit_s=0)
    return None


def train(
    command: Sequence[str], run: Path, signals: list[int], is_hopeless: Callable[[], bool] = lambda: False
) -> tuple[int, str]:
    """Train in the folder ``run``, or resume there; stop after a checkpoint on one of ``signals``, or if it is hopeless.

    Returns the exit code, which is ``EXIT_RESUMABLE`` after a stop, and the line that says why the run failed.

    Raises:
        UsageError: if another run still writes to the folder after a minute.
    """
    run.mkdir(parents=True, exist_ok=True)
    state.lock(run / state.LOCK, limit_s=LEFT_BEHIND_S).close()
    stopped_before, sent = written_at(run / "stopped"), 0
    with (run / OUTPUT).open("a+", errors="replace") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [*command, f"--train.run_dir={run}"],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches this process alone.
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock that a thread may hold
        )
        try:
            while process.poll() is None:
                if sent < len(signals) or (is_hopeless() and not sent):
                    # First the signal that every launcher passes on.
                    process.send_signal(signal.SIGTERM if sent else signal.SIGUSR1)
                    sent += 1
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(begin)
        error = error_in(output.read())
    return EXIT_RESUMABLE if written_at(run / "stopped") > stopped_before else process.returncode, error


def environment() -> dict[str, str]:
    """Return the variables of a run: this Python is the first, and it has no ranks of a launcher around this process."""
    ranks = {*chain.from_iterable(launcher.RANK_VARIABLES)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**{name: value for name, value in os.environ.items() if name not in ranks}, "PATH": path}


def error_in(output: str) -> str:
    """Return the line of a run's output that says why it failed."""
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    reasons = (line for line in lines if re.search(r"[Ee]rror: |^\[rank \d+\] (?!failed)", line))
    return next(reasons, lines[-1]).removeprefix("error: ")


def write_table(file: Path, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    state.write(file, text.getvalue())


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with aligned columns."""
    table = [[*titles], *([*map(shown, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def shown(value: object) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)
