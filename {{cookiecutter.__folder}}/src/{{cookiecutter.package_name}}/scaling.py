"""From which batch on are more processes faster, and how many are worth it? Measured, and predicted past this machine."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from . import distributed, storage
from .config import Config, to_options
from .distributed import hardware
from .errors import UsageError
from .profiling import WARM_UP
from .task.data import load

TRAINING_LIMIT_S = 1800.0
# Worlds for which a step is predicted.
PREDICTED = [2**power for power in range(1, 13)]
# Twice the processes are worth it if they raise the speed by this part at least.
PAYS = 0.1


class Measured(NamedTuple):
    """One training: so many processes with one global batch."""

    processes: int
    batch_size: int
    milliseconds: float
    """of a step, without evaluations and checkpoints"""
    samples_per_second: float
    exchange: float
    """part of a step that only waits for the exchange"""
    memory_mib: int
    """of the largest process"""
    wall_s: float
    """from the command to its end"""


class Predicted(NamedTuple):
    """The milliseconds of a step that so many processes would take, by three ways to exchange."""

    processes: int
    batch_size: int
    ring: float
    tree: float
    master: float


@dataclass(frozen=True)
class Link:
    """How the processes reach each other, as an all-reduce of 1 KB and one of 64 MB tell."""

    latency_s: float
    """of one message"""
    bandwidth: float
    """bytes per second"""

    def ring(self, size: float, processes: int) -> float:
        """Return the seconds of an all-reduce in which each process sends to the next one."""
        rounds = 2 * (processes - 1)
        return rounds * self.latency_s + rounds / processes * size / self.bandwidth

    def tree(self, size: float, processes: int) -> float:
        """Return the seconds of one that goes up a binary tree and down again."""
        return 2 * math.ceil(math.log2(processes)) * (self.latency_s + size / self.bandwidth)

    def master(self, size: float, processes: int) -> float:
        """Return the seconds of one in which a single process receives from all others, and sends to them."""
        return 2 * (processes - 1) * (self.latency_s + size / self.bandwidth)


def scaling(config: Config, settings: list[str], asked: dict[str, str]) -> int:
    """Train with each number of processes and each global batch; print and write what was found; return the exit code.

    Args:
        settings: options that all trainings get.
        asked: numbers of ``processes`` of this machine, and of samples in the ``batches``; number of ``steps``.

    Raises:
        UsageError: if no training can be made of these numbers, or one failed.
    """
    folder = Path(config.train.run_dir)
    processes, batches = numbers(asked, "processes"), numbers(asked, "batches")
    steps = max(numbers(asked, "steps"))
    cells = [(number, batch) for batch in batches for number in processes if batch % number == 0]
    if not cells:
        raise UsageError("no batch is divisible by a number of processes: choose others with --batches or --processes")
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Measured] = []
    about: dict[str, Any] = {}
    for number, batch in cells:
        row, about = measure(config, [*settings, "--data.batch_size", str(batch)], number, batch, steps, folder)
        rows.append(row)
        storage.write_table(folder / "scaling.csv", Measured._fields, rows)
        print(
            f"{number} x {batch // number} samples: {row.milliseconds:.3g} ms, {row.samples_per_second:.0f} samples/s"
        )
    show(rows)
    for sentence in crossovers(rows):
        print(sentence)
    most = max(processes)
    if most > 1 and 1 in processes:
        link = measure_link(config, most)
        compute = line_through([(row.batch_size, row.milliseconds / 1e3) for row in rows if row.processes == 1])
        size = float(about["gradient_bytes"])
        predicted = list(predict(link, compute, size, max(batches)))
        storage.write_table(folder / "predicted.csv", Predicted._fields, predicted)
        print(where_it_stops_paying(predicted))
    draw(rows, folder / "scaling.png")
    print(f"all is in {folder}")
    return 0


def batches_of_crossover(config: Config) -> str:
    """Return the batches of the preset, which show where more processes begin to pay, as far as there are samples."""
    samples = len(load(config.task).train)
    return ",".join(str(batch) for batch in (2, 8, 32, 128, 512, 2048, 6144) if batch <= samples)


def numbers(asked: dict[str, str], name: str) -> list[int]:
    """Return the numbers that stand behind the option of this name.

    Raises:
        UsageError: if they are none.
    """
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", asked[name]):
        raise UsageError(f"--{name} {asked[name]} must be numbers from 1 on, such as 2 or 1,2,4")
    return sorted({int(number) for number in asked[name].split(",")})


def measure(
    config: Config, settings: list[str], processes: int, batch_size: int, steps: int, folder: Path
) -> tuple[Measured, dict[str, Any]]:
    """Train once; return what was measured, and what the profile says of it.

    Raises:
        UsageError: if the training failed.
    """
    run = folder / f".{processes}x{batch_size}"
    shutil.rmtree(run, ignore_errors=True)
    options = {
        "train.run_dir": run,
        "train.resume": "none",
        "train.max_iterations": steps + WARM_UP,
        "train.evaluate_every": f"{steps + WARM_UP} steps",
        "train.log_every": steps + WARM_UP,
        "train.profile": "basic",
    }
    command = distributed.local_command(processes, ["train", *settings, *to_options(options)])
    environment = {**hardware.ENVIRONMENT, **os.environ}
    started = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=TRAINING_LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        told = [line for line in said.splitlines() if "error: " in line or line.startswith("[rank")] or [said[-300:]]
        raise UsageError(f"{processes} processes with batches of {batch_size}: {told[0].removeprefix('error: ')}", 1)
    about: dict[str, Any] = json.loads((run / "profile" / "profile.json").read_text())
    step, wall = about["step_milliseconds"], time.monotonic() - started
    share = about["milliseconds"]["exchange"] / step
    shutil.rmtree(run)
    return Measured(processes, batch_size, step, 1e3 * batch_size / step, share, about["memory_mib"], wall), about


def crossovers(rows: Sequence[Measured]) -> Iterator[str]:
    """Yield from which batch on each number of processes is faster than one, as far as both were measured."""
    alone = {row.batch_size: row.milliseconds for row in rows if row.processes == 1}
    for number in sorted({row.processes for row in rows} - {1}):
        both = sorted((row.batch_size, row.milliseconds) for row in rows if row.processes == number)
        gains = [(batch, alone[batch] / spent) for batch, spent in both if batch in alone]
        faster = [batch for place, (batch, _) in enumerate(gains) if all(gain > 1 for _, gain in gains[place:])]
        if faster:
            batch, gain = gains[-1]
            said = f"faster than one from batches of {faster[0]} on, {gain:.2f} times as fast at {batch}"
        elif gains:
            said = "slower than one at every batch that was measured"
        else:
            continue
        yield f"{number} processes are {said}"


def line_through(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return slope and start of the line that is nearest to the points; through zero, if there is one point."""
    if len(points) == 1:
        return points[0][1] / points[0][0], 0.0
    slope, start = statistics.linear_regression(*zip(*points, strict=True))
    return slope, max(start, 0.0)


def predict(link: Link, compute: tuple[float, float], size: float, batch_size: int) -> Iterator[Predicted]:
    """Yield what a step takes in larger and larger worlds, if nothing of the exchange is hidden by the backward pass.

    Args:
        compute: seconds of one process for each sample of its own, and for each step.
        size: bytes of the gradients.
        batch_size: samples of a step, over all processes.
    """
    per_sample, per_step = compute
    for processes in PREDICTED:
        if processes > batch_size:
            return
        alone = per_step + per_sample * batch_size / processes
        exchanges = (link.ring(size, processes), link.tree(size, processes), link.master(size, processes))
        yield Predicted(processes, batch_size, *(1e3 * (alone + exchange) for exchange in exchanges))


def where_it_stops_paying(predicted: Sequence[Predicted]) -> str:
    """Return one sentence: how many processes are worth it."""
    said = f"predicted for batches of {predicted[0].batch_size}, each process with a core of its own: adding processes"
    for row, more in pairwise(predicted):
        gain = row.ring / more.ring - 1
        if gain < PAYS:
            what = f"gain {gain:.0%}" if gain > 0 else f"take {more.ring / row.ring - 1:.0%} longer"
            return f"{said} stops paying at {row.processes}: {more.processes} would {what}"
    return f"{said} pays up to {predicted[-1].processes} at least"


def measure_link(config: Config, processes: int) -> Link:
    """Return how the processes reach each other.

    Raises:
        UsageError: if they do not.
    """
    from .doctor import measure_here

    measured = measure_here(config, processes)
    if "error" in measured:
        raise UsageError(f"{processes} processes cannot exchange: {measured['error']}", 1)
    return link_of(measured, processes)


def link_of(measured: dict[str, Any], processes: int) -> Link:
    """Return the link that explains what ``doctor --exchange`` measured between so many processes."""
    small, large = measured["all_reduce"]
    rounds = 2 * (processes - 1)
    latency = small["milliseconds"] / 1e3 / rounds
    seconds = large["milliseconds"] / 1e3 - rounds * latency
    return Link(latency, rounds / processes * large["bytes"] / seconds)


def show(rows: Sequence[Measured]) -> None:
    """Print the table, with the efficiency: the speed of each process, as a part of that of one that trains alone."""
    alone = {row.batch_size: row.samples_per_second for row in rows if row.processes == 1}
    table = Table(box=None, pad_edge=False)
    titles = ("processes", "batch", "ms", "samples/s", "efficiency", "weak", "exchange", "MiB", "wall s")
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows:
        # The same batch on one process; or, weak, as many samples on each.
        strong, weak = alone.get(row.batch_size), alone.get(row.batch_size // row.processes)
        efficiencies = [f"{row.samples_per_second / row.processes / one:.0%}" if one else "" for one in (strong, weak)]
        speed = (f"{row.milliseconds:.3g}", f"{row.samples_per_second:.0f}")
        rest = (f"{row.exchange:.0%}", str(row.memory_mib), f"{row.wall_s:.1f}")
        table.add_row(str(row.processes), str(row.batch_size), *speed, *efficiencies, *rest)
    Console().print(table)


def draw(rows: Sequence[Measured], path: Path) -> None:
    """Draw samples per second over the batch, one line for each number of processes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    figure.set_layout_engine("constrained")
    for number in sorted({row.processes for row in rows}):
        line = [(row.batch_size, row.samples_per_second) for row in rows if row.processes == number]
        axes.plot(*zip(*line, strict=True), marker=".", label=f"{number} process{'es' if number > 1 else ''}")
    axes.set(xlabel="global batch", ylabel="samples per second", xscale="log", yscale="log")
    axes.legend()
    with storage.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")
    pyplot.close(figure)
