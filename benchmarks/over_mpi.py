"""How much of what no training can beat does the rendered project reach over MPI? ``nox -s benchmark_mpi``

As throughput.py, but with Debian's torch, which is built with MPI: the project, and one process alone with one exchange, in
turns. The table is in docs/benchmarks.md.
"""

import argparse
import datetime
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]
from laps import Program, in_turns
from page import fill, to_options
from throughput import CASES, LAPS, PROCESSES, STARTS, STEP, Case, settings_of

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
    # It sets what another task has.
    (project.path / "configs" / "default.yaml").write_text("train:\n  epochs: 1\n")
    shutil.copytree(FOLDER / "peers", project.path / "peers", dirs_exist_ok=True)
    return project


def start(project: Installed, *command: str) -> Program:
    """Start two processes of the project's Python with torch's MPI."""
    lap = STEP if "train" in command else r"^lap \d"
    whole = [*project.enter, "env", "OMP_NUM_THREADS=1", "BACKEND=mpi", *MPIRUN, "python3", *command]
    return Program(whole, lap, project.environment, project.path)


def speeds(project: Installed, case: Case, starts: int) -> dict[str, list[float]]:
    """Return the samples per second of the project, and of one process alone with one exchange, lap by lap."""
    run_dir = Path("runs/it")
    ours = ("-m", project.package, "train", "--train.resume", "none", *to_options(settings_of(case, run_dir)))
    values = {**case._asdict(), "evaluates": int(case.evaluates), "folder": "/tmp"}
    limit = ("peers/limit.py", *(f"--{name}={value}" for name, value in values.items()))

    def train() -> Program:
        shutil.rmtree(project.path / run_dir.parent, ignore_errors=True)
        return start(project, *ours)

    seconds, _ = in_turns({"ours": train, "limit": lambda: start(project, *limit)}, starts, LAPS)
    return {name: [case.samples / lap for lap in taken] for name, taken in seconds.items()}


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS)
    options = parser.parse_args()
    about = f"{os.cpu_count()} CPU cores, {datetime.date.today().isoformat()}"
    lines = [
        f"Two MPI processes, {about}; medians of {options.starts * LAPS} laps (lowest to highest).",
        "",
        "| case | rendered project | limit | share of the limit |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        project = install(Path(name))
        for case in NAMES:
            found = speeds(project, CASES[case], options.starts)
            cells = [
                f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
                for values in found.values()
            ]
            share = statistics.median(ours / most for ours, most in zip(*found.values(), strict=True))
            lines.append(f"| {case} | {' | '.join(cells)} | **{share:.2f}** |")
            print(lines[-1], flush=True)
    fill("mpi", lines)


if __name__ == "__main__":
    main()
