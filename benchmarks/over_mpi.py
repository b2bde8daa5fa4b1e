"""How much of what no training can beat does the rendered project reach over MPI? ``nox -s benchmark_mpi``

As throughput.py, but with Debian's torch, which is built with MPI: the project, and one process alone with one exchange, in
turns. Results are kept in benchmarks/results.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]
from my_ddl_project.config import to_options
from throughput import CASES, PROCESSES, RESULTS, Case

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))
from baking import ROOT, BakedProject, Target
from installing import Installed, Installer

NAMES = ("compute-bound: CNN, 32x32", "CNN, 8x8, batch 64", "overhead-bound: MLP, batch 128")
MPIRUN = ["mpirun", "--bind-to", "none", "--allow-run-as-root", "-n", str(PROCESSES)]
TARGET = Target("cpu", "mpi", "mpirun")


def install(folder: Path) -> Installed:
    """Return a project for MPI whose task is that of the benchmark."""

    def bake(**answers: Any) -> BakedProject:
        path = cookiecutter(str(ROOT), no_input=True, extra_context=answers, output_dir=str(folder))
        return BakedProject(Path(path), {"package_name": "my_ddl_project"})

    project = Installer(bake, folder / "environments")(TARGET, folder, task="image-classification")
    task = project.path / "src" / project.package / "task"
    shutil.copytree(FOLDER / "task", task, dirs_exist_ok=True)
    (task / "predict.py").unlink()
    shutil.copytree(FOLDER / "peers", project.path / "peers")
    return project


def speed(project: Installed, case: Case) -> float:
    """Return the samples per second of the project, without its evaluations and checkpoints."""
    settings = {
        f"task.{name}": getattr(case, name) for name in ("data", "model", "width", "size", "val_size")
    }
    settings |= {"data.batch_size": case.batch_size, "train.epochs": case.epochs, "train.run_dir": "runs/it"}
    shutil.rmtree(project.path / "runs", ignore_errors=True)
    project.succeed(
        *MPIRUN, "python3", "-m", project.package, "train", *to_options(settings), OMP_NUM_THREADS="1"
    )
    lines = (project.path / "runs/it/metrics.jsonl").read_text().splitlines()[1:]
    return statistics.harmonic_mean([float(json.loads(line)["samples_per_second"]) for line in lines])


def limit(project: Installed, case: Case) -> float:
    """Return the samples per second of one process alone, and one exchange."""
    values = {**case._asdict(), "evaluates": int(case.evaluates), "folder": "/tmp"}
    options = [f"--{name}={value}" for name, value in values.items()]
    said = project.succeed(*MPIRUN, "python3", "peers/limit.py", *options, OMP_NUM_THREADS="1", BACKEND="mpi")
    return float(said.split()[-1])


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = [
        f"Two MPI processes, {os.cpu_count()} CPU cores, {datetime.date.today().isoformat()}: samples per second, medians of",
        f"{options.rounds} rounds in turns (lowest to highest). The limit is what one process computes alone, and one exchange.",
        "",
        "| case | rendered project | limit | share of the limit |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        project = install(Path(name))
        for case in NAMES:
            rounds = [
                (speed(project, CASES[case]), limit(project, CASES[case])) for _ in range(options.rounds)
            ]
            cells = [
                f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
                for values in zip(*rounds, strict=True)
            ]
            share = statistics.median(ours / most for ours, most in rounds)
            lines.append(f"| {case} | {' | '.join(cells)} | **{share:.2f}** |")
            print(lines[-1], flush=True)
    (RESULTS / "throughput-mpi.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
