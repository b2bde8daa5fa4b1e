"""Launch a training of two processes again and again: none may fail, and none may leave a process behind.

``nox -s launches``; LAUNCHES is how often for each launcher (default: 50). Too long for every change.
"""

import json
import os
from pathlib import Path

import pytest
from baking import Target
from installing import Installer
from launching import processes_with, train, wait_for

LAUNCHES = int(os.environ.get("LAUNCHES", "50"))
SHORT = ("--task.dataset", "synthetic", "--task.image_size", "8", "--task.synthetic_size", "128")


@pytest.mark.launches
@pytest.mark.timeout(LAUNCHES * 120)
@pytest.mark.parametrize("launcher", ["spawn", "torchrun", "mpirun", "slurm"])
def test_every_one_of_many_launches_trains(
    install: Installer, launcher: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = Target("cpu", "gloo", launcher)
    if launcher == "slurm":
        request.getfixturevalue("slurm_cluster")
    project = install(target, tmp_path)
    for number in range(1, LAUNCHES + 1):
        run = tmp_path / f"run-{number}"
        train(project, target, *SHORT, "--train.epochs", "1", run_dir=str(run))
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["world_size"], summary["weights_difference"]) == (2, 0.0), number
        wait_for(lambda: not processes_with(str(run)), "every process to end", 30)  # noqa: B023
        print(f"{launcher}: {number} of {LAUNCHES}", flush=True)
