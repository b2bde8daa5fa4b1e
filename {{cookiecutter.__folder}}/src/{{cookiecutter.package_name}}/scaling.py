"""From which batch on are more processes faster, and how many are worth it? Measured, and predicted past this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from . import storage
from .binding import load_data
from .config import Config, to_options
from .distributed import launcher
from .errors import UsageError
from .prediction import Predicted, link_of, predict, where_it_stops_paying
from .profiling import WARM_UP
from .tables import print_table
from .tracking import SWITCH
from .trials import Start, begin, reason, started_here, started_on_nodes

# How long a launcher may take to cancel its job.
CANCEL_LIMIT_S = 10.0


class Measured(NamedTuple):
    """One training: so many processes with one global batch."""

    nodes: int
    processes: int
    """on all nodes together"""
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


def scaling(config: Config, settings: list[str], asked: dict[str, str]) -> int:
    """Train with each number of processes and each global batch; print and write what was found; return the exit code.

    Args:
        settings: options that all trainings get.
        asked: numbers of ``processes`` of a machine, and of samples in the ``batches``; number of ``steps``; numbers of
            ``nodes``, or nothing for trainings on this machine.

    Raises:
        UsageError: if no training can be made of these numbers, or one failed.
    """
    folder = Path(config.train.run_dir)
    processes, batches = numbers(asked, "processes"), numbers(asked, "batches")
    steps = max(numbers(asked, "steps"))
    if asked["nodes"] and launcher.ON_NODES is None:
        raise UsageError(f"{launcher.NAME} does not start other nodes from this one: leave --nodes away")
    worlds = [(1, number) for number in processes]
    if asked["nodes"]:
        worlds = [(nodes, nodes * number) for nodes in numbers(asked, "nodes") for number in processes]
    cells = [(*world, batch) for batch in batches for world in worlds if batch % world[1] == 0]
    if not cells:
        raise UsageError("no batch is divisible by a number of processes: choose others with --batches or --processes")
    # Else the smaller ones would be measured, and all of it lost.
    if max(batches) > (samples := len(load_data(config).train)):
        raise UsageError(f"--batches {max(batches)} is larger than the training set: choose at most {samples}")
    storage.open_folder(folder)
    rows: list[Measured] = []
    abouts: dict[tuple[int, int], dict[str, Any]] = {}
    for nodes, number, batch in cells:
        run = folder / f".{nodes}x{number // nodes}x{batch}"
        start = started_on_nodes(run, nodes, number) if asked["nodes"] else started_here(run, number)
        row, abouts[number, nodes] = measure(start, settings, (nodes, number), batch, steps, run)
        rows.append(row)
        storage.write_table(folder / "scaling.csv", Measured._fields, rows)
        print(
            f"{number} x {batch // number} samples: {row.milliseconds:.3g} ms, {row.samples_per_second:.0f} samples/s"
        )
    show(rows)
    for sentence in crossovers(rows):
        print(sentence)
    # Of as many processes, those on more nodes.
    most = max(abouts)
    if most[0] > 1 and (1, 1) in abouts:
        link = link_of(abouts[most], most[0])
        alone = [(row.batch_size, row.milliseconds / 1e3) for row in rows if row.processes == 1]
        size = float(abouts[most]["gradient_bytes"])
        predicted = list(predict(link, alone, size, max(batches)))
        storage.write_table(folder / "predicted.csv", Predicted._fields, predicted)
        print(where_it_stops_paying(predicted, abouts[most]["by_tree"]))
    draw(rows, folder / "scaling.png")
    print(f"all is in {folder}")
    return 0


def batches_of_crossover(config: Config) -> str:
    """Return the batches of the preset, which show where more processes begin to pay, as far as there are samples."""
    samples = len(load_data(config).train)
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
    start: Start, settings: list[str], world: tuple[int, int], batch_size: int, steps: int, run: Path
) -> tuple[Measured, dict[str, Any]]:
    """Train once in the folder ``run``; return what was measured, and what the profile says of it.

    Args:
        world: numbers of nodes, and of processes on all of them.

    Raises:
        UsageError: if the training failed.
    """
    shutil.rmtree(run, ignore_errors=True)
    options = {
        **start.options,
        "data.batch_size": batch_size,
        "train.resume": "none",
        "train.max_iterations": steps + WARM_UP,
        "train.evaluate_every": f"{steps + WARM_UP} steps",
        "train.log_every": steps + WARM_UP,
        "train.profile": "basic",
    }
    started, what = time.monotonic(), f"{name_of(*world)} with batches of {batch_size}"
    # A measurement is no run for a tracker.
    start = start._replace(variables={**start.variables, SWITCH: "off"})
    with begin(start, [*settings, *to_options(options)], subprocess.PIPE) as process:
        try:
            said, _ = process.communicate(timeout=start.limit_s)
        except BaseException as error:
            if launcher.QUEUED:
                # It cancels its job, which would train on elsewhere.
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CANCEL_LIMIT_S)
            # A training takes the signal of its launcher's end for a reason to stop in order, at its next log point, which
            # is its last step here. Where rank 0 is gone, the others end.
            rank_0 = storage.holder(run / storage.LOCK)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if rank_0:
                with suppress(ProcessLookupError):
                    os.kill(rank_0, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                said = f"still training after {error.timeout / 60:.0f} minutes: lower --steps"
                raise UsageError(f"{what}: {said}", 1) from None
            raise
    if process.returncode:
        raise UsageError(f"{what}: {reason(said)}", 1)
    about: dict[str, Any] = json.loads((run / "profile" / "profile.json").read_text())
    step, wall = about["step_milliseconds"], time.monotonic() - started
    share = about["milliseconds"]["exchange"] / step
    shutil.rmtree(run)
    return Measured(*world, batch_size, step, 1e3 * batch_size / step, share, about["memory_mib"], wall), about


def crossovers(rows: Sequence[Measured]) -> Iterator[str]:
    """Yield from which batch on each world is faster than one process, as far as both were measured."""
    alone = {row.batch_size: row.milliseconds for row in rows if row.processes == 1}
    for world in sorted({(row.nodes, row.processes) for row in rows} - {(1, 1)}):
        both = sorted((row.batch_size, row.milliseconds) for row in rows if (row.nodes, row.processes) == world)
        gains = [(batch, alone[batch] / spent) for batch, spent in both if batch in alone]
        faster = [batch for place, (batch, _) in enumerate(gains) if all(gain > 1 for _, gain in gains[place:])]
        if faster:
            batch, gain = gains[-1]
            said = f"faster than one from batches of {faster[0]} on, {gain:.2f} times as fast at {batch}"
        elif gains:
            slower = [str(batch) for batch, gain in gains if gain <= 1]
            where = "at every batch that was measured" if len(slower) == len(gains) else f"at {', '.join(slower)}"
            said = f"slower than one {where}"
        else:
            continue
        yield f"{name_of(*world)} are {said}"


def name_of(nodes: int, processes: int) -> str:
    """Return what people call a world."""
    return ("1 process" if processes == 1 else f"{processes} processes") + (f" on {nodes} nodes" if nodes > 1 else "")


def show(rows: Sequence[Measured]) -> None:
    """Print the table, with the efficiency: the speed of each process, as a part of that of one that trains alone."""
    alone = {row.batch_size: row.samples_per_second for row in rows if row.processes == 1}
    table = Table(box=None, pad_edge=False)
    titles = ("nodes", "processes", "batch", "ms", "samples/s", "efficiency", "weak", "exchange", "MiB", "wall s")
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows:
        # The same batch on one process; or, weak, as many samples on each.
        strong, weak = alone.get(row.batch_size), alone.get(row.batch_size // row.processes)
        efficiencies = [f"{row.samples_per_second / row.processes / one:.0%}" if one else "" for one in (strong, weak)]
        speed = (f"{row.milliseconds:.3g}", f"{row.samples_per_second:.0f}")
        rest = (f"{row.exchange:.0%}", str(row.memory_mib), f"{row.wall_s:.1f}")
        table.add_row(str(row.nodes), str(row.processes), str(row.batch_size), *speed, *efficiencies, *rest)
    print_table(table)


def draw(rows: Sequence[Measured], path: Path) -> None:
    """Draw samples per second over the batch, one line for each world."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    figure.set_layout_engine("constrained")
    for world in sorted({(row.nodes, row.processes) for row in rows}):
        line = [(row.batch_size, row.samples_per_second) for row in rows if (row.nodes, row.processes) == world]
        axes.plot(*zip(*line, strict=True), marker=".", label=name_of(*world))
    axes.set(xlabel="global batch", ylabel="samples per second", xscale="log", yscale="log")
    axes.legend()
    with storage.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")
