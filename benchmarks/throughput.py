"""Is a rendered project as fast as the alternatives? ``nox -s benchmark``

A rendered project, two loops written by hand with torch's DDP, PyTorch-Ignite as its code-generator writes it, Accelerate and
Lightning train the same model on the same data with two gloo processes. They run in turns, because the machine's speed drifts.
The numbers are kept in benchmarks/results, the tables in docs/benchmarks.md.
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
from laps import LIMIT_S, Program, in_turns, ratio_cell
from page import RESULTS, ROOT, fill, to_options

FOLDER = Path(__file__).parent
PROCESSES = 2
# The agent polls its processes less often than by default, because those of all programs share the machine.
TORCHRUN = ["torchrun", "--standalone", "--monitor-interval=5", f"--nproc-per-node={PROCESSES}"]
STARTS = 3
LAPS = 3
"""of each program after each start, beside one to warm up"""
STEP = r"\bstep [1-9]"
"""what the rendered project logs at the end of a lap"""
OURS = "rendered project"
TUNED = "tuned loop by hand"


class Case(NamedTuple):
    """A model, its data and the length of a lap."""

    data: str
    model: str
    width: int
    batch_size: int
    """global batch"""
    epochs: int
    """of a lap, which should take a few seconds"""
    size: int = 1437
    """training samples; the digits have as many"""
    val_size: int = 256
    num_workers: int = 0
    """DataLoader workers of each process"""
    evaluates: bool = False
    """whether a lap includes an evaluation after each epoch"""

    @property
    def samples(self) -> int:
        """Samples of a lap."""
        return self.size // self.batch_size * self.batch_size * self.epochs


CASES = {
    "compute-bound: CNN, 32x32": Case("images", "cnn", 32, 64, epochs=2, size=1024),
    "CNN, 8x8, batch 64": Case("digits", "cnn", 32, 64, epochs=12),
    "CNN, 8x8, batch 16": Case("digits", "cnn", 8, 16, epochs=8),
    "overhead-bound: MLP, batch 128": Case("digits", "mlp", 256, 128, epochs=50),
    "input-bound: image files, one DataLoader worker each": Case(
        "files", "mlp", 32, 64, epochs=2, size=2048, num_workers=1
    ),
    "input-bound: tokens mapped from a file": Case("tokens", "bigram", 16, 256, epochs=1, size=8192),
    "evaluation-bound: 16 times as many samples": Case(
        "digits", "cnn", 8, 64, epochs=2, val_size=16 * 1437, evaluates=True
    ),
}
Found = dict[str, dict[str, list[float]]]
"""numbers of each lap, by case and program"""
Start = Callable[[Case, Path], Program]


def peer(name: str, *launcher: str) -> Start:
    """Return a function that starts a program of peers/."""

    def start(case: Case, folder: Path) -> Program:
        settings = {**case._asdict(), "evaluates": int(case.evaluates), "folder": folder}
        options = [f"--{key}={value}" for key, value in settings.items()]
        return Program([*launcher, str(FOLDER / "peers" / name), *options], r"^lap \d")

    return start


def settings_of(case: Case, run_dir: Path) -> dict[str, object]:
    """Return the settings of the rendered project: it logs once per lap, and evaluates only if the case does."""
    often: dict[str, object] = {"train.evaluate_every": f"{case.epochs} epochs"}
    if not case.evaluates:
        steps = case.samples // case.batch_size
        often = {"train.evaluate_every": f"{10**6} epochs", "train.log_every": steps}
    return {
        **{f"task.{name}": getattr(case, name) for name in ("data", "model", "width", "size", "val_size")},
        "task.folder": run_dir.parent,
        "data.batch_size": case.batch_size,
        "data.num_workers": case.num_workers,
        "train.epochs": 10**6,
        "train.run_dir": run_dir,
        **often,
    }


def rendered(
    case: Case, folder: Path, *more: str, project: Path | None = None, processes: int = PROCESSES
) -> Program:
    """Start the rendered project: the installed one, or the one in a folder."""
    options = to_options(settings_of(case, Path(tempfile.mkdtemp(dir=folder))))
    command = [
        *TORCHRUN[:-1],
        f"--nproc-per-node={processes}",
        "-m",
        "my_ddl_project",
        "train",
        *options,
        *more,
    ]
    lap = r"\bepoch [1-9].* val_loss" if case.evaluates else STEP
    return Program(command, lap, os.environ | ({"PYTHONPATH": str(project / "src")} if project else {}))


PROGRAMS: dict[str, Start] = {
    OURS: rendered,
    TUNED: peer("tuned_by_hand.py", *TORCHRUN),
    "loop by hand": peer("by_hand.py", *TORCHRUN),
    "ignite, as generated": peer("with_ignite.py", *TORCHRUN),
    "Accelerate": peer("with_accelerate.py", *TORCHRUN),
    # It starts the second process itself.
    "Lightning": peer("with_lightning.py", sys.executable),
    "limit": peer("limit.py", *TORCHRUN),
}


def speeds(
    case: Case, programs: dict[str, Start], folder: Path, starts: int, laps: int
) -> dict[str, list[float]]:
    """Return the samples per second of each program, lap by lap."""
    # The limit ignores data and evaluation.
    bounded = case.num_workers or case.data == "tokens" or case.evaluates
    chosen = {
        name: partial(start, case, folder)
        for name, start in programs.items()
        if not (bounded and name == "limit")
    }
    seconds, _ = in_turns(chosen, starts, laps)
    return {name: [case.samples / lap for lap in taken] for name, taken in seconds.items()}


def seconds_of_starts(programs: dict[str, Start], folder: Path, starts: int) -> dict[str, list[float]]:
    """Return the seconds from the command to the end of its first step, in turns."""
    case = CASES["CNN, 8x8, batch 64"]
    chosen = {name: start for name, start in programs.items() if name != "limit"}
    chosen[OURS] = lambda case, folder: rendered(case, folder, "--train.log_every", "1")
    chosen["torchrun and imports alone"] = peer("imports.py", *TORCHRUN)
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(starts):
        for name, start in chosen.items():
            with start(case, folder) as program:
                found[name].append(program.seconds_until(r"\bstep 1/"))
    return found


def seconds_of_demo(folder: Path) -> float:
    """Return how long ``scripts/train.sh`` of a new project takes."""
    project = Path(cookiecutter(str(ROOT), no_input=True, overwrite_if_exists=True, output_dir=str(folder)))
    shutil.rmtree(project / "runs", ignore_errors=True)
    # Not the installed project.
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "PYTHONWARNINGS": "ignore"}
    started = time.perf_counter()
    subprocess.run(
        [project / "scripts/train.sh"], env=environment, check=True, capture_output=True, timeout=LIMIT_S
    )
    seconds = time.perf_counter() - started
    best = json.loads((project / "runs/default/summary.json").read_text())["best"]
    assert best["val_accuracy"] > 0.98, best
    return seconds


def table(title: str, found: Found, digits: int) -> list[str]:
    """Return a table of medians, and of the ratios of the first program to each other one."""
    columns = list(dict.fromkeys(name for values in found.values() for name in values))
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for case, values in found.items():
        cells = []
        for name in columns:
            numbers = values.get(name, [])
            cell = f"{statistics.median(numbers):,.{digits}f}" if numbers else ""
            if numbers and name != columns[0]:
                cell += f"<br>{ratio_cell(values[columns[0]], numbers)}"
            cells.append(cell)
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def make_files(folder: Path) -> None:
    """Write the image files and the file of tokens."""
    from PIL import Image

    rng = random.Random(0)
    for number in range(max(case.size for case in CASES.values() if case.data == "files")):
        # Blocks of colour: neither empty nor noise.
        pixels = Image.frombytes("RGB", (8, 8), rng.randbytes(8 * 8 * 3))
        pixels.resize((96, 96), Image.Resampling.BICUBIC).save(folder / f"{number:05}.png")
    (folder / "tokens").write_bytes(rng.randbytes(64 * 2**20))


def main() -> None:
    """Measure each case, keep its numbers at once, and write the tables when every case has some."""
    every = (*CASES, "start", "demo")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help="times to start each program")
    parser.add_argument("--laps", type=int, default=LAPS, help="laps of each program after each start")
    parser.add_argument("--case", choices=every, nargs="*", default=every, help="cases to measure")
    parser.add_argument("--program", choices=PROGRAMS, nargs="*", default=[*PROGRAMS], help="programs to run")
    parser.add_argument(
        "--other", type=Path, help="folder of another rendered project to run in the same rounds"
    )
    options = parser.parse_args()
    programs = {name: PROGRAMS[name] for name in options.program}
    if options.other:
        programs["other project"] = partial(rendered, project=options.other)
    numbers = RESULTS / "throughput-cpu.json"
    # Starts take twice as long without cached bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: Found = {}
    if set(options.case) != set(every) and numbers.exists():
        found = json.loads(numbers.read_text())["found"]
    versions = {name: version(name) for name in ("torch", "pytorch-ignite", "accelerate", "lightning")}
    about: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "versions": {"Python": platform.python_version(), **versions},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for case in options.case:
            if case in CASES:
                found[case] = speeds(CASES[case], programs, folder, options.starts, options.laps)
            elif case == "start":
                found[case] = seconds_of_starts(programs, folder, options.starts)
            else:
                found[case] = {OURS: [seconds_of_demo(folder) for _ in range(options.starts)]}
            print("\n".join(table(case, {"": found[case]}, 0 if case in CASES else 1)), flush=True)
            numbers.write_text(json.dumps({**about, "found": found}, indent=1) + "\n")
    if found.keys() == set(every):
        write(about, found)


def write(about: dict[str, Any], found: Found) -> None:
    """Write the tables and the figure."""
    measured = {case: found[case] for case in CASES}
    laps = sorted({len(numbers) for values in measured.values() for numbers in values.values()})
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    laps_text = " or ".join(map(str, laps))
    title = (
        f"Two gloo processes, {about['machine']}, {versions}, {about['date']}; medians of {laps_text} laps."
    )
    fill("throughput", [title, "", *table("samples per second", measured, 0)])
    demo = statistics.median(found["demo"][OURS])
    text = (
        f"`scripts/train.sh` of a new project trains the digits in {demo:.0f} s, from the command to its end."
    )
    fill("start", [*table("seconds", {"from the command to the first step": found["start"]}, 1), "", text])
    draw(measured, ROOT / "docs" / "throughput-cpu.png")


def draw(measured: Found, path: Path) -> None:
    """Draw the speed of each program relative to the tuned loop in the same round: the median and the range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in PROGRAMS if name not in (TUNED, "limit")]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for place, name in enumerate(names):
        rows = [
            [one / tuned for one, tuned in zip(values[name], values[TUNED], strict=True)]
            for values in measured.values()
        ]
        middles = [statistics.median(row) for row in rows]
        ranges = [
            [middle - min(row) for middle, row in zip(middles, rows, strict=True)],
            [max(row) - middle for middle, row in zip(middles, rows, strict=True)],
        ]
        heights = [number + 0.14 * (place - (len(names) - 1) / 2) for number in range(len(rows))]
        axes.errorbar(middles, heights, xerr=ranges, fmt="o", markersize=5, linewidth=1, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(measured)), list(measured))
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as a tuned loop written by hand", xlim=(0, None))
    axes.legend(loc="upper right")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
