"""Train on a real Slurm of two nodes, and meet what jobs meet there: limits, preemption, lost nodes, scancel."""

from collections.abc import Iterator
from pathlib import Path

import cluster
import pytest
from baking import Target
from installing import Installed, Installer
from launching import (
    SYNTHETIC,
    job_state,
    nothing_runs_on_the_nodes,
    output_of,
    submit,
    train,
    wait_for,
    wait_for_end,
    waiting_for_data,
)

pytestmark = [pytest.mark.executed, pytest.mark.cluster, pytest.mark.usefixtures("slurm_cluster")]

TARGET = Target("cpu", "gloo", "slurm")
EPOCHS = 8
LONG = (*SYNTHETIC, "--train.epochs", str(EPOCHS))


@pytest.fixture(scope="module")
def project(install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """One installation for all tests here: each writes its own run directory."""
    return waiting_for_data(
        install(
            TARGET,
            tmp_path_factory.mktemp("slurm"),
        )
    )


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test, no process of a training is left on any node."""
    yield
    cluster.slurm("scancel", "--user", "root")
    wait_for(nothing_runs_on_the_nodes, "the processes of the training to end", 60)


@pytest.mark.seldom
def test_two_nodes_train(project: Installed) -> None:
    """Two processes on each node; the targets are trained with one on each."""
    job = submit(project, RUN_DIR="runs/two", NNODES="2", NPROC_PER_NODE="2")
    assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    summary = project.read_json("runs/two/summary.json")
    assert (summary["world_size"], summary["nnodes"], summary["weights_difference"]) == (4, 2, 0.0)
    assert summary["val_accuracy"] >= 0.97


def test_the_time_limit_loses_nothing(project: Installed) -> None:
    run = "runs/limit"
    limits = {"SBATCH_TIMELIMIT": "10", "SBATCH_SIGNAL": "USR1@100"}
    size = {"NNODES": "2", "NPROC_PER_NODE": "1"}
    # Slurm looks at the limits twice a minute: too many epochs to be done by then.
    endless = [*LONG, "--train.epochs", "500"]
    job = submit(project, *endless, RUN_DIR=run, **size, **limits)
    wait_for(lambda: "epoch 2  " in output_of(project, job), "the training")
    # Less is left then than the signal asks for.
    cluster.slurm("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    wait_for(lambda: int(job_state(job)["Restarts"]) > 0, "the job to be queued again", 180)
    assert "stopped by a signal" in output_of(project, job)
    before = len(project.epochs(run))
    wait_for(lambda: len(project.epochs(run)) > before + 1, "the training to go on")
    assert "resumed from" in output_of(project, job)
    # Ask for fewer epochs, for the test to end soon.
    cluster.slurm("scancel", job)
    assert wait_for_end(job) == "CANCELLED"
    epochs = len(project.epochs(run)) + 2
    train(project, TARGET, *LONG, "--train.epochs", str(epochs), run_dir=run)
    assert_every_epoch_once(project, run, epochs)


def test_preemption_loses_nothing(project: Installed) -> None:
    job = submit(project, *LONG, RUN_DIR="runs/preempted", NNODES="2", NPROC_PER_NODE="1")
    wait_for(lambda: "epoch 2  " in output_of(project, job), "the training")
    # As somebody does who goes on to the next experiment.
    defaults = project.path / "configs" / "default.yaml"
    before = defaults.read_text()
    assert "lr: 0.003" in before
    defaults.write_text(before.replace("lr: 0.003", "lr: 0.5"))
    urgent = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1"]
    other = cluster.slurm("sbatch", "--parsable", *urgent).strip()
    assert wait_for_end(other) == "COMPLETED"
    assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    assert int(job_state(job)["Restarts"]) == 1
    assert "stopped by a signal" in output_of(project, job)
    assert_every_epoch_once(project, "runs/preempted")
    defaults.write_text(before)
    assert "settings changed" not in output_of(project, job)
    assert "lr: 0.003" in (project.path / "runs/preempted/config.yaml").read_text()


def test_a_node_that_dies_costs_one_epoch_at_most(project: Installed) -> None:
    job = submit(project, *LONG, RUN_DIR="runs/node", NPROC_PER_NODE="2")
    wait_for(lambda: "epoch 2  " in output_of(project, job), "the training")
    node = job_state(job)["BatchHost"]
    try:
        cluster.crash(node)
        wait_for(lambda: int(job_state(job)["Restarts"]) == 1, "Slurm to give up the node", 120)
        assert wait_for_end(job) == "COMPLETED", output_of(project, job)
        assert job_state(job)["BatchHost"] != node
    finally:
        cluster.slurm_node_up(node)
    assert_every_epoch_once(project, "runs/node")


def test_a_cancelled_job_writes_a_checkpoint_and_does_not_come_back(project: Installed) -> None:
    job = submit(project, *LONG, RUN_DIR="runs/cancelled", NNODES="2", NPROC_PER_NODE="1")
    wait_for(lambda: "epoch 2  " in output_of(project, job), "the training")
    cluster.slurm("scancel", job)
    assert wait_for_end(job, 60) == "CANCELLED"
    wait_for(nothing_runs_on_the_nodes, "the processes of the training to end", 60)
    assert job_state(job)["JobState"] == "CANCELLED"
    # The same run directory goes on.
    train(project, TARGET, *LONG, run_dir="runs/cancelled")
    assert project.read_json("runs/cancelled/summary.json")["resumed_from"]
    assert_every_epoch_once(project, "runs/cancelled")


def test_what_cannot_work_is_refused_before_it_waits_in_the_queue(project: Installed) -> None:
    cases = [
        (["--data.batch_size", "63"], "Use 62 or 64"),
        (["--train.epoch", "3"], "--train.epoch 3"),
    ]
    for settings, sentence in cases:
        done = project.run("scripts/train.sh", *settings, extra={"SLURM_CONF": str(cluster.SLURM_CONF)})
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    commands = Path(project.environment["VIRTUAL_ENV"], "bin")
    for needed in ("sh", "dirname", "readlink"):
        (commands / needed).symlink_to(f"/bin/{needed}")
    done = project.run("scripts/train.sh", extra={"PATH": str(commands)})
    assert (done.returncode, done.stderr) == (1, "error: sbatch is not on the PATH. Log in to the cluster.\n")


def test_a_dry_run_is_what_is_submitted(project: Installed) -> None:
    size = {"NNODES": "2", "NPROC_PER_NODE": "1", "SLURM_CONF": str(cluster.SLURM_CONF)}
    settings = ["--train.epochs", "2"]
    said = project.succeed("scripts/train.sh", "--dry-run", *settings, variables=size)
    job = project.succeed("bash", "-c", said, variables=size).strip()
    assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    assert (project.path / "runs" / job / "summary.json").exists()
    other = submit(project, *settings, **size)
    cluster.slurm("scancel", other)
    assert job_state(job)["Command"] == job_state(other)["Command"]
    assert job_state(job)["NumTasks"] == job_state(other)["NumTasks"] == "2"


def assert_every_epoch_once(project: Installed, run: str, epochs: int = EPOCHS) -> None:
    """A run that was stopped and went on has the record of one that was not."""
    assert project.epochs(run) == list(range(1, epochs + 1))
    assert project.read_json(f"{run}/summary.json")["weights_difference"] == 0.0
