"""Sweeps and seeds with real trainings: what is stopped or killed is taken up again, and nothing is left running."""

import csv
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from baking import Target
from installing import Installed, Installer
from launching import processes_with, wait_for

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

EPOCHS = 20
# With this seed, the first two trials get the good rate, and the third one a rate that shows at once to be far too small.
ASKED = ["optim.lr=0.003,1e-7", "--trials", "3", "--train.seed", "10"]
ASKED += ["--train.epochs", str(EPOCHS), "--train.log_every", "2"]


@pytest.fixture(scope="module")
def project(install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """One installation for all tests here, with optuna."""
    return install(Target("cpu", "gloo", "torchrun"), tmp_path_factory.mktemp("sweeps"), extras="dev,sweep")


@contextmanager
def sweeping(project: Installed, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep in the folder; at last, all that it has started has to have ended."""
    process = subprocess.Popen(
        ["python3", "-m", project.package, "sweep", *ASKED, "--train.run_dir", str(folder)],
        cwd=project.path,
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
        wait_for(lambda: not processes_with(str(folder)), "every process to end", 40)
    finally:
        for pid in processes_with(str(folder)):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.seldom
def test_a_project_s_own_tests_of_sweeps_pass_with_optuna(project: Installed) -> None:
    print(project.succeed("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_sweep.py"))


def test_a_sweep_that_is_stopped_and_killed_loses_no_trial(project: Installed) -> None:
    folder = project.path / "runs" / "sweep"
    source = project.path / "src" / project.package / "sweep.py"
    # As docs/sweeps.md says, another pruner may stand there: this one does not wait for five trials.
    source.write_text(source.read_text().replace("MedianPruner()", "MedianPruner(n_startup_trials=2)"))
    for trial, number in enumerate((signal.SIGTERM, signal.SIGKILL)):
        run = folder / f"trial-{trial:04}"
        with sweeping(project, folder) as process:
            wait_for((run / "metrics.jsonl").exists, f"trial {trial}")
            process.send_signal(number)
            assert process.wait(60) == (85 if number == signal.SIGTERM else -number)
        assert (run / "stopped").exists()
    said = project.succeed("python3", "-m", project.package, "sweep", *ASKED)
    assert not processes_with(str(folder))
    with (folder / "trials.csv").open() as file:
        rows = {int(row["trial"]): row for row in csv.DictReader(file)}
    assert {trial: row["state"] for trial, row in rows.items()} == {
        0: "complete",
        1: "complete",
        2: "pruned",
    }, said
    assert rows[2]["optim.lr"] == "1e-7" and (folder / "trial-0002" / "stopped").exists()
    for trial, row in rows.items():
        run = folder / f"trial-{trial:04}"
        epochs = [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert epochs == list(range(1, len(epochs) + 1))
        assert len(epochs) == int(row["evaluations"])
        assert (len(epochs) == EPOCHS) == (row["state"] == "complete")
    for trial in range(2):
        assert "resumed from" in (folder / f"trial-{trial:04}" / "log.txt").read_text()
        assert project.read_json(f"runs/sweep/trial-{trial:04}/summary.json")["world_size"] == 2
    # The best is first, and is what the command says that evaluates it.
    evaluate = next(line for line in said.splitlines() if " evaluate " in line).partition(": ")[2].split()
    measured = project.succeed(*evaluate)
    best = next(iter(rows.values()))
    assert best["optim.lr"] == "0.003"
    assert json.loads(measured[measured.index("{") :])["val_accuracy"] == pytest.approx(
        float(best["val_accuracy"])
    )


def test_seeds_are_trained_by_the_launcher(project: Installed) -> None:
    smoke = ["--train.epochs", "1"]
    said = project.succeed("python3", "-m", project.package, "seeds", "0,1", *smoke)
    assert "val_accuracy" in said
    for seed in (0, 1):
        assert project.read_json(f"runs/seeds/seed-{seed}/summary.json")["world_size"] == 2


def test_a_launcher_whose_trainings_cannot_be_followed_says_what_to_do(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "kubernetes"), tmp_path, extras="dev,sweep")
    for command in (["sweep", "optim.lr=1e-4..1e-1"], ["seeds", "0,1"]):
        done = project.run("python3", "-m", project.package, *command, limit_s=60)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "add --here to train here" in done.stderr
    project.succeed(
        *("python3", "-m", project.package, "seeds", "0", "--here", "--train.epochs", "1"),
        NPROC_PER_NODE="1",
    )
    assert project.read_json("runs/seeds/seed-0/summary.json")["epoch"] == 1
