"""Is the rendered project as fast as what one would use instead? ``nox -s benchmark``

The rendered project, a loop written by hand with torch's DDP, PyTorch-Ignite as its code-generator writes it, Accelerate and
Lightning train the same model on the same data with two gloo processes, in turns, because the machine's speed drifts. Beside
them stands a limit: the steps of one process alone, and one exchange. Results are kept in benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from my_ddl_project.config import to_options

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PROCESSES = 2
TORCHRUN = ["torchrun", "--standalone", f"--nproc-per-node={PROCESSES}"]
LIMIT_S = 300
ROUNDS = 5
MORE_ROUNDS = 9
"""of the cases for which this project promises a speed"""


class Case(NamedTuple):
    """What is trained, and how the time is taken."""

    data: str
    model: str
    width: int
    batch_size: int
    """of both processes together"""
    epochs: int
    size: int = 1437
    """training samples; those of the digits are as many"""
    val_size: int = 256
    num_workers: int = 0
    """loader processes of each process"""
    evaluates: bool = False
    """after every epoch, within the time that is taken"""


class Seen(NamedTuple):
    """When a command told of each step and epoch, in seconds since its start; its last line; the memory of its largest process."""

    steps: dict[int, float]
    epochs: list[float]
    last: str
    memory_mib: int


CASES = {
    "compute-bound: CNN, 32x32": Case("images", "cnn", 32, 64, epochs=5, size=1024),
    "CNN, 8x8, batch 64": Case("digits", "cnn", 32, 64, epochs=20),
    "CNN, 8x8, batch 16": Case("digits", "cnn", 8, 16, epochs=12),
    "overhead-bound: MLP, batch 128": Case("digits", "mlp", 256, 128, epochs=150),
    "input-bound: image files, one loader process each": Case(
        "files", "mlp", 32, 64, epochs=6, size=2048, num_workers=1
    ),
    "input-bound: tokens mapped from a file": Case("tokens", "bigram", 16, 256, epochs=5, size=32768),
    "evaluation-bound: 16 times as many samples": Case(
        "digits", "cnn", 8, 64, epochs=5, val_size=16 * 1437, evaluates=True
    ),
}


def run(command: list[str]) -> Seen:
    """Run a command to its end.

    Raises:
        SystemExit: if it failed, with what it printed.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    started, steps = time.perf_counter(), dict[int, float]()
    epochs, lines = [], []
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        limit = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        assert process.stdout
        for line in process.stdout:
            now = time.perf_counter() - started
            if step := re.search(r"\bstep (\d+)/", line):
                steps.setdefault(int(step[1]), now)
            if re.search(r"\bepoch \d", line):
                epochs.append(now)
            lines.append(line)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        limit.cancel()
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines)}")
    return Seen(steps, epochs, lines[-1], used.ru_maxrss >> 10)


def samples_per_second(case: Case, epochs: list[float]) -> float:
    """Return the speed from the end of the first epoch to that of the last one."""
    assert len(epochs) == case.epochs
    steps = case.size // case.batch_size * (case.epochs - 1)
    return steps * case.batch_size / (epochs[-1] - epochs[0])


def peer(name: str, *launcher: str) -> Callable[[Case, Path], list[str]]:
    """Return what makes the command of a program in peers/."""

    def command(case: Case, folder: Path) -> list[str]:
        settings = {**case._asdict(), "evaluates": int(case.evaluates), "folder": folder}
        return [
            *launcher,
            str(FOLDER / "peers" / name),
            *(f"--{key}={value}" for key, value in settings.items()),
        ]

    return command


def rendered(case: Case, folder: Path, *more: str) -> list[str]:
    """Return the command of the rendered project, without its run directory."""
    task = {name: getattr(case, name) for name in ("data", "model", "width", "size", "val_size")}
    settings = {
        **{f"task.{name}": value for name, value in task.items()},
        "task.folder": folder,
        "data.batch_size": case.batch_size,
        "data.num_workers": case.num_workers,
        "train.epochs": case.epochs,
    }
    return [*TORCHRUN, "-m", "my_ddl_project", "train", *to_options(settings), *more]


def speed_of_rendered(case: Case, folder: Path, *more: str) -> tuple[float, int]:
    """Return its samples per second, without its evaluations and checkpoints unless the case asks for evaluations; and MiB."""
    with tempfile.TemporaryDirectory() as run_dir:
        seen = run(rendered(case, folder, "--train.run_dir", run_dir, *more))
        if case.evaluates:
            return samples_per_second(case, seen.epochs), seen.memory_mib
        records = [
            json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()[1:]
        ]
        # Harmonic: every epoch has the same number of samples.
        speed = statistics.harmonic_mean([float(record["samples_per_second"]) for record in records])
        return speed, seen.memory_mib


PEERS = {
    "loop by hand": peer("by_hand.py", *TORCHRUN),
    "ignite, as generated": peer("with_ignite.py", *TORCHRUN),
    "Accelerate": peer("with_accelerate.py", *TORCHRUN),
    # It starts the second process itself.
    "Lightning": peer("with_lightning.py", sys.executable),
}
LIMIT = peer("limit.py", *TORCHRUN)
APART = peer("apart.py", *TORCHRUN)


def measures_of(case: Case, folder: Path) -> dict[str, Callable[[], float]]:
    """Return what measures the samples per second of each."""

    def speed(command: Callable[[Case, Path], list[str]]) -> Callable[[], float]:
        return lambda: samples_per_second(case, run(command(case, folder)).epochs)

    measures = {"rendered project": lambda: speed_of_rendered(case, folder)[0]}
    measures |= {name: speed(command) for name, command in PEERS.items()}
    # What bounds the others is the reading of the data, or the evaluation.
    if case.num_workers == 0 and case.data != "tokens" and not case.evaluates:
        measures["limit"] = lambda: float(run(LIMIT(case, folder)).last)
    if case.data == "images":
        measures["processes apart"] = lambda: float(run(APART(case, folder)).last)
    return measures


def starts(folder: Path) -> dict[str, Callable[[], float]]:
    """Return what measures the seconds from the command to the end of its first step."""
    case = CASES["CNN, 8x8, batch 64"]._replace(epochs=1)

    def project() -> float:
        with tempfile.TemporaryDirectory() as run_dir:
            options = ("--train.run_dir", run_dir, "--train.log_every", "1", "--train.max_iterations", "2")
            return run(rendered(case, folder, *options)).steps[1]

    def start(command: Callable[[Case, Path], list[str]]) -> Callable[[], float]:
        return lambda: run(command(case, folder)).steps[1]

    measures = {"rendered project": project} | {name: start(command) for name, command in PEERS.items()}
    measures["torchrun, and imports alone"] = start(peer("imports.py", *TORCHRUN))
    return measures


def in_turns(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each of them measured in every round; who comes first changes."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(measures[name]())
    return found


def table(title: str, found: dict[str, dict[str, list[float]]], digits: int) -> list[str]:
    """Return the lines of a table: the medians, the ranges, and the median of the ratios of the rounds."""
    columns = list(dict.fromkeys(name for values in found.values() for name in values))
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for case, values in found.items():
        cells = []
        for name in columns:
            numbers = values.get(name, [])
            if not numbers:
                cells.append("")
                continue
            low, high = (f"{end:,.{digits}f}" for end in (min(numbers), max(numbers)))
            cell = f"{statistics.median(numbers):,.{digits}f} ({low} to {high})"
            if name != columns[0]:
                pairs = zip(values[columns[0]], numbers, strict=True)
                cell += f" **{statistics.median(ours / other for ours, other in pairs):.2f}**"
            cells.append(cell)
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def make_files(folder: Path) -> None:
    """Write what the cases read: image files and a file of tokens."""
    from PIL import Image

    chance = random.Random(0)
    for number in range(max(case.size for case in CASES.values() if case.data == "files")):
        # Blocks of colour, so that a file is neither empty nor noise.
        pixels = Image.frombytes("RGB", (8, 8), chance.randbytes(8 * 8 * 3))
        pixels.resize((96, 96), Image.Resampling.BICUBIC).save(folder / f"{number:05}.png")
    (folder / "tokens").write_bytes(chance.randbytes(64 * 2**20))


def main() -> None:
    """Run every case in turns and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"default: {MORE_ROUNDS} of the first case and of the overhead-bound one, otherwise {ROUNDS}",
    )
    parser.add_argument("--case", choices=[*CASES, "start"], help="only print this one")
    options = parser.parse_args()
    versions = {name: version(name) for name in ("torch", "pytorch-ignite", "accelerate", "lightning")}
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "versions": {"Python": platform.python_version(), **versions},
    }
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for case in [options.case] if options.case else [*CASES, "start"]:
            measures = starts(folder) if case == "start" else measures_of(CASES[case], folder)
            promised = case.startswith(("compute-bound", "overhead-bound"))
            found[case] = in_turns(measures, options.rounds or (MORE_ROUNDS if promised else ROUNDS))
            print("\n".join(table(case, {"": found[case]}, 1 if case == "start" else 0)), flush=True)
    if not options.case:
        write(about, found)


def write(about: dict[str, Any], found: dict[str, dict[str, list[float]]]) -> None:
    """Keep the numbers, and the tables that people read."""
    speeds = {case: values for case, values in found.items() if case != "start"}
    stated = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    text = [
        f"Two gloo processes, each number the median of {ROUNDS} rounds in turns, or {MORE_ROUNDS} (compute-bound, overhead-bound),",
        "and lowest to highest. In bold: the number of the rendered project divided by this one, in the median of the rounds.",
        "The limit is what one process computes alone, and one exchange of all gradients, without any loader; processes apart",
        "exchange nothing.",
        f"{about['machine']}, {stated}, {about['date']}.",
        "",
        *table("samples per second", speeds, 0),
        "",
        *table("seconds", {"from the command to the end of the first step": found["start"]}, 1),
    ]
    (RESULTS / "throughput-cpu.md").write_text("\n".join(text) + "\n")
    (RESULTS / "throughput-cpu.json").write_text(json.dumps({**about, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
