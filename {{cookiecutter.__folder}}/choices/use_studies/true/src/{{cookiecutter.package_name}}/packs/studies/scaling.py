"""The command ``scaling``: speed over numbers of processes and batch sizes."""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config import Config
from ...runtime import UsageError, state
from ...runtime.process import catching_stop_signals
from ...task import load_task
from . import trials

CROSSOVER = (2, 8, 32, 128, 512, 2048, 6144)
# A run reads its speed so often after a warm-up; the median counts.
LAPS = 5
TITLES = ("processes", "batch_size", "samples_per_second", "milliseconds", "speedup", "efficiency")
Speeds = dict[tuple[int, int], float]
"""samples per second by number of processes and global batch"""


def scaling(config: Config, options: dict[str, Any]) -> int:
    """Train a few steps with each number of processes and each batch; print and write the speeds; return the exit code.

    Raises:
        UsageError: if a number cannot work, or a run failed.
    """
    if options["simulate"]:
        from .simulation import simulate

        return simulate(config, options["world_size"])
    samples, folder, speeds = len(load_task(config.task).train), Path(config.train.run_dir), Speeds()
    processes, batches = numbers_in(options, "processes"), numbers_in(options, "batches")
    if options["preset"]:
        batches = [batch for batch in CROSSOVER if batch <= samples]
    if max(batches) > samples:
        raise UsageError(f"--batches {max(batches)} is larger than the training set. Use at most {samples}.")
    cells = [(number, batch) for batch in batches for number in processes if batch % number == 0]
    if not cells:
        raise UsageError("no batch is divisible by a number of processes. Change --batches or --processes.")
    folder.mkdir(parents=True, exist_ok=True)
    # These runs are not for a tracker.
    os.environ["TRACKING"] = "off"
    with tempfile.TemporaryDirectory(dir=folder) as runs, catching_stop_signals() as signals:
        settings = trials.share_settings(config, Path(runs))
        for number, batch in cells:
            command = [*trials.local_command(number), *settings, *settings_of(batch, options["steps"])]
            run = Path(runs) / f"{number}x{batch}"
            code, error = trials.train(command, run, signals)
            if signals:
                raise UsageError("stopped by a signal. Start again.", 128 + signals[0])
            if code:
                raise UsageError(f"{named(number)} with batches of {batch}: {error}", 1)
            laps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
            speeds[number, batch] = statistics.median(lap["samples_per_second"] for lap in laps[1:])
            print(f"{named(number)}, batch {batch}: {speeds[number, batch]:.0f} samples/s", flush=True)
            trials.write_table(folder / "scaling.csv", TITLES, rows_of(speeds))
    trials.print_table(TITLES, rows_of(speeds))
    for sentence in crossovers(speeds):
        print(sentence)
    draw(speeds, folder / "scaling.png")
    print(f"table and plot are in {folder}")
    return 0


def numbers_in(options: dict[str, Any], name: str) -> list[int]:
    """Return the numbers of an option such as 1,2,4."""
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", options[name]):
        raise UsageError(f"--{name} {options[name]} is not a list of numbers. Use 2 or 1,2,4.")
    return sorted({int(number) for number in options[name].split(",")})


def settings_of(batch_size: int, steps: int) -> list[str]:
    """Return the settings of a run that reads its speed after a warm-up and then ``LAPS`` times in so many steps."""
    lap = max(steps // LAPS, 1)
    steps = lap * (LAPS + 1)
    settings = [f"--data.batch_size={batch_size}", f"--train.max_iterations={steps}", f"--train.log_every={lap}"]
    return [*settings, f"--train.evaluate_every={steps} steps", "--train.save_every=null"]


def rows_of(speeds: Speeds) -> list[tuple[Any, ...]]:
    """Return the rows of the table; speedup and efficiency compare with one process and the same batch."""
    rows = []
    for (number, batch), speed in speeds.items():
        speedup = speed / speeds[1, batch] if (1, batch) in speeds else None
        rows.append((number, batch, speed, 1e3 * batch / speed, speedup, speedup and speedup / number))
    return rows


def crossovers(speeds: Speeds) -> Iterator[str]:
    """Yield above which batch size each number of processes is faster than one."""
    for processes in sorted({number for number, _ in speeds} - {1}):
        batches = sorted(batch for number, batch in speeds if number == processes and (1, batch) in speeds)
        gains = {batch: speeds[processes, batch] / speeds[1, batch] for batch in batches}
        slower = [batch for batch in batches if gains[batch] <= 1]
        faster = [batch for batch in batches if batch > max(slower, default=0)]
        if faster:
            yield f"{named(processes)} pay off from batch {faster[0]}: {gains[batches[-1]]:.2f} times as fast at {batches[-1]}"
        elif gains:
            yield f"{named(processes)} do not pay off up to batch {batches[-1]}"


def named(processes: int) -> str:
    """Return a number of processes in words."""
    return f"{processes} process{'es' * (processes > 1)}"


def draw(speeds: Speeds, path: Path) -> None:
    """Draw samples per second over the batch, one line for each number of processes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for processes in sorted({number for number, _ in speeds}):
        line = [(batch, speed) for (number, batch), speed in speeds.items() if number == processes]
        axes.plot(*zip(*line, strict=True), marker=".", label=named(processes))
    axes.set(xlabel="global batch", ylabel="samples per second", xscale="log", yscale="log")
    axes.legend()
    with state.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")
