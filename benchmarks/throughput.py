"""Is the rendered project as fast as what one would use instead? ``nox -s benchmark``

The rendered project, a loop written by hand with torch's DDP, PyTorch-Ignite as its code-generator writes it, Accelerate and
Lightning train the same model on the same data with two gloo processes. They take laps in turns, because the machine's speed
drifts. Beside them stands a limit: the steps of one process alone, and as many exchanges. The numbers are kept in
benchmarks/results, the tables in docs/benchmarks.md.
"""

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]
from laps import LIMIT_S, Program, in_turns
from my_ddl_project.config import to_options
from page import ROOT, fill

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PROCESSES = 2
# It looks after its processes less often than it would by itself, as all of them stand beside those that are measured.
TORCHRUN = ["torchrun", "--standalone", "--monitor-interval=5", f"--nproc-per-node={PROCESSES}"]
STARTS = 3
STEPS = r"\bstep [1-9]"
"""what the rendered project says at a log point"""
LAPS = 3
"""of each program after each start, but for one to warm up"""


class Case(NamedTuple):
    """What is trained."""

    data: str
    model: str
    width: int
    batch_size: int
    """of both processes together"""
    epochs: int
    """of a lap, which should take a few seconds"""
    size: int = 1437
    """training samples; those of the digits are as many"""
    val_size: int = 256
    num_workers: int = 0
    """loader processes of each process"""
    evaluates: bool = False
    """after every epoch, within the time that is taken"""

    @property
    def samples(self) -> int:
        """Of a lap."""
        return self.size // self.batch_size * self.batch_size * self.epochs


CASES = {
    "compute-bound: CNN, 32x32": Case("images", "cnn", 32, 64, epochs=2, size=1024),
    "CNN, 8x8, batch 64": Case("digits", "cnn", 32, 64, epochs=12),
    "CNN, 8x8, batch 16": Case("digits", "cnn", 8, 16, epochs=8),
    "overhead-bound: MLP, batch 128": Case("digits", "mlp", 256, 128, epochs=50),
    "input-bound: image files, one loader process each": Case(
        "files", "mlp", 32, 64, epochs=2, size=2048, num_workers=1
    ),
    "input-bound: tokens mapped from a file": Case("tokens", "bigram", 16, 256, epochs=1, size=8192),
    "evaluation-bound: 16 times as many samples": Case(
        "digits", "cnn", 8, 64, epochs=2, val_size=16 * 1437, evaluates=True
    ),
}


def peer(name: str, *launcher: str) -> Callable[[Case, Path], Program]:
    """Return what starts a program in peers/."""

    def start(case: Case, folder: Path) -> Program:
        settings = {**case._asdict(), "evaluates": int(case.evaluates), "folder": folder}
        options = [f"--{key}={value}" for key, value in settings.items()]
        return Program([*launcher, str(FOLDER / "peers" / name), *options], r"^lap \d")

    return start


def settings_of(case: Case, run_dir: Path) -> dict[str, object]:
    """Return the settings of the rendered project, which tells of each lap, and evaluates nothing unless the case asks for it."""
    often: dict[str, object] = {"train.evaluate_every": f"{case.epochs} epochs"}
    if not case.evaluates:
        often = {
            "train.evaluate_every": f"{10**6} epochs",
            "train.log_every": case.samples // case.batch_size,
        }
    return {
        **{f"task.{name}": getattr(case, name) for name in ("data", "model", "width", "size", "val_size")},
        "task.folder": run_dir.parent,
        "data.batch_size": case.batch_size,
        "data.num_workers": case.num_workers,
        "train.epochs": 10**6,
        "train.run_dir": run_dir,
        **often,
    }


def rendered(case: Case, folder: Path, *more: str, processes: int = PROCESSES) -> Program:
    """Start the rendered project."""
    settings = settings_of(case, Path(tempfile.mkdtemp(dir=folder)))
    command = [
        *TORCHRUN[:-1],
        f"--nproc-per-node={processes}",
        "-m",
        "my_ddl_project",
        "train",
        *to_options(settings),
        *more,
    ]
    return Program(command, r"\bepoch [1-9].* val_loss" if case.evaluates else STEPS)


PEERS = {
    "loop by hand": peer("by_hand.py", *TORCHRUN),
    "ignite, as generated": peer("with_ignite.py", *TORCHRUN),
    "Accelerate": peer("with_accelerate.py", *TORCHRUN),
    # It starts the second process itself.
    "Lightning": peer("with_lightning.py", sys.executable),
}
LIMIT = peer("limit.py", *TORCHRUN)
APART = peer("apart.py", *TORCHRUN)


def speeds(case: Case, folder: Path, starts: int, laps: int) -> dict[str, list[float]]:
    """Return the samples per second of each program, round by round."""
    programs = {"rendered project": rendered, **PEERS}
    # What bounds the others is the reading of the data, or the evaluation.
    if case.num_workers == 0 and case.data != "tokens" and not case.evaluates:
        programs["limit"] = LIMIT
    if case.data == "images":
        programs["processes apart"] = APART
    chosen = {name: partial(start, case, folder) for name, start in programs.items()}
    seconds, _ = in_turns(chosen, starts, laps)
    return {name: [case.samples / lap for lap in taken] for name, taken in seconds.items()}


def seconds_of_starts(folder: Path, starts: int) -> dict[str, list[float]]:
    """Return the seconds from the command to the end of its first step, in turns."""
    case = CASES["CNN, 8x8, batch 64"]
    log = ("--train.log_every", "1")
    programs = {"rendered project": lambda *given: rendered(*given, *log), **PEERS}
    programs["torchrun, and imports alone"] = peer("imports.py", *TORCHRUN)
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(starts):
        for name, start in programs.items():
            with start(case, folder) as program:
                found[name].append(program.seconds_until(r"\bstep 1/"))
    return found


def seconds_of_demo(folder: Path) -> float:
    """Return how long the first command of a project takes: the training of ``nox -s demo`` to its result, checks included."""
    project = Path(cookiecutter(str(ROOT), no_input=True, overwrite_if_exists=True, output_dir=str(folder)))
    shutil.rmtree(project / "runs", ignore_errors=True)
    # Not the project that this environment holds.
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "PYTHONWARNINGS": "ignore"}
    started = time.perf_counter()
    subprocess.run(
        [project / "scripts/train.sh"], env=environment, check=True, capture_output=True, timeout=LIMIT_S
    )
    seconds = time.perf_counter() - started
    best = json.loads((project / "runs/default/summary.json").read_text())["best"]
    assert best["val_accuracy"] > 0.98, best
    return seconds


def table(title: str, found: dict[str, dict[str, list[float]]], digits: int) -> list[str]:
    """Return the lines of a table: the medians, and the ratios of the rounds, their median and their range."""
    columns = list(dict.fromkeys(name for values in found.values() for name in values))
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for case, values in found.items():
        cells = []
        for name in columns:
            numbers = values.get(name, [])
            cell = f"{statistics.median(numbers):,.{digits}f}" if numbers else ""
            if numbers and name != columns[0]:
                pairs = zip(values[columns[0]], numbers, strict=True)
                ratios = [ours / other for ours, other in pairs]
                cell += f"<br>**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
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
    """Run every case in turns, keep the numbers of each as soon as they are there, and write the tables."""
    every = (*CASES, "start", "demo")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help="how often to start each program anew")
    parser.add_argument("--laps", type=int, default=LAPS, help="of each program after each start")
    parser.add_argument("--case", choices=every, nargs="*", default=every, help="measure anew only these")
    options = parser.parse_args()
    versions = {name: version(name) for name in ("torch", "pytorch-ignite", "accelerate", "lightning")}
    about: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "versions": {"Python": platform.python_version(), **versions},
    }
    numbers = RESULTS / "throughput-cpu.json"
    found: dict[str, dict[str, list[float]]] = {}
    # A start that may not keep what it compiles takes twice as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if set(options.case) != set(every) and numbers.exists():
        found = json.loads(numbers.read_text())["found"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for case in options.case:
            if case in CASES:
                found[case] = speeds(CASES[case], folder, options.starts, options.laps)
            elif case == "start":
                found[case] = seconds_of_starts(folder, options.starts)
            else:
                found[case] = {"rendered project": [seconds_of_demo(folder) for _ in range(options.starts)]}
            digits = 0 if case in CASES else 1
            print("\n".join(table(case, {"": found[case]}, digits)), flush=True)
            numbers.write_text(json.dumps({**about, "found": found}, indent=1) + "\n")
    if found.keys() == set(every):
        write(about, found)


def write(about: dict[str, Any], found: dict[str, dict[str, list[float]]]) -> None:
    """Write the tables and the figure."""
    measured = {case: found[case] for case in CASES}
    rounds = sorted({len(numbers) for values in measured.values() for numbers in values.values()})
    stated = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    fill(
        "throughput",
        [
            f"Two gloo processes, {about['machine']}, {stated}, last measured {about['date']}; medians of {' or '.join(map(str, rounds))} laps.",
            "",
            *table("samples per second", measured, 0),
        ],
    )
    demo = statistics.median(found["demo"]["rendered project"])
    fill(
        "start",
        [
            *table("seconds", {"from the command to the end of the first step": found["start"]}, 1),
            "",
            f"`scripts/train.sh` of a new project learns the digits in {demo:.0f} s, from the command to the end.",
        ],
    )
    draw(measured, ROOT / "docs" / "throughput-cpu.png")


def draw(measured: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw the speed of each program as a part of that of the loop by hand in the same round: the median, and the range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = ["rendered project", *(name for name in PEERS if name != "loop by hand")]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for place, name in enumerate(names):
        rows = [
            [one / by_hand for one, by_hand in zip(values[name], values["loop by hand"], strict=True)]
            for values in measured.values()
        ]
        middles = [statistics.median(row) for row in rows]
        ends = [
            [middle - min(row) for middle, row in zip(middles, rows, strict=True)],
            [max(row) - middle for middle, row in zip(middles, rows, strict=True)],
        ]
        heights = [number + 0.16 * (place - (len(names) - 1) / 2) for number in range(len(rows))]
        axes.errorbar(middles, heights, xerr=ends, fmt="o", markersize=5, linewidth=1, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(measured)), list(measured))
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as a loop written by hand", xlim=(0, None))
    axes.legend(loc="upper right")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
