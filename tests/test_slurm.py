"""Train on a real Slurm of two nodes, and meet what jobs meet there: limits, preemption, lost nodes, scancel."""

import csv
import re
import signal
import subprocess
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
    return waiting_for_data(install(TARGET, tmp_path_factory.mktemp("slurm"), extras="dev,sweep"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test, no process of a training is left on any node."""
    yield
    cluster.slurm("scancel", "--user", "root")
    wait_for(nothing_runs_on_the_nodes, "the processes of the training to end", 60)


# Srun also starts the targets, one process on each node, and the trainings below.
@pytest.mark.parametrize("starter", [pytest.param("srun", marks=pytest.mark.seldom), "torchrun"])
def test_two_nodes_train(project: Installed, starter: str) -> None:
    """Two processes on each node; the targets are trained with one on each."""
    run = f"runs/{starter}"
    job = submit(project, RUN_DIR=run, NNODES="2", NPROC_PER_NODE="2", STARTER=starter)
    assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    summary = project.read_json(f"{run}/summary.json")
    assert summary["world_size"] == 4
    assert summary["nnodes"] == 2
    assert summary["val_accuracy"] >= 0.97
    assert summary["weights_difference"] == 0.0


@pytest.mark.seldom
def test_scaling_measures_nodes(project: Installed) -> None:
    asked = (
        "--nodes",
        "1,2",
        "--processes",
        "1",
        "--batches",
        "64",
        "--steps",
        "8",
        "--train.run_dir",
        "runs/study",
    )
    known = {"SLURM_CONF": str(cluster.SLURM_CONF)}
    said = project.succeed("python3", "-m", project.package, "scaling", *asked, variables=known)
    assert "2 processes on 2 nodes are " in said
    assert "adding processes" in said
    table = rows_in(project.path / "runs" / "study" / "scaling.csv")
    rows = [(row["nodes"], row["processes"], row["batch_size"]) for row in table]
    assert rows == [("1", "1", "64"), ("2", "2", "64")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_study_of_scaling_that_is_ended_leaves_no_job(project: Installed, number: signal.Signals) -> None:
    run = f"runs/ended-{number.name}"
    asked = ["--nodes", "2", "--processes", "1", "--batches", "64", "--steps", "10000000"]
    study = subprocess.Popen(
        [
            "env",
            "--default-signal=INT",
            "python3",
            "-m",
            project.package,
            "scaling",
            *asked,
            "--train.run_dir",
            run,
        ],
        cwd=project.path,
        env={**project.environment, "SLURM_CONF": str(cluster.SLURM_CONF)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        log = project.path / run / ".2x1x64" / "log.txt"
        wait_for(lambda: log.exists() and "optimizer: " in log.read_text(), "the training")
        study.send_signal(number)
        assert study.wait(60) == (130 if number == signal.SIGINT else -number)
        wait_for(lambda: not cluster.slurm("squeue", "--noheader").strip(), "the job to be cancelled", 60)
    finally:
        study.kill()
        study.wait()


def test_an_array_of_jobs_trains_one_seed_each(project: Installed) -> None:
    # Slurm makes no folder, and a job without one ends at once.
    variables = {"SEEDS": "3-4", "SBATCH_OUTPUT": "logs/%x-%j.out", "SLURM_CONF": str(cluster.SLURM_CONF)}
    said = project.succeed("scripts/train.sh", "--train.epochs", "2", variables=variables)
    found = re.match(r"job (\d+) is submitted; .*\n.*  tail -F (\S+)  ", said)
    assert found, said
    job, output = found.groups()
    assert output == f"logs/my-ddl-project-{job}_3.out"
    for seed in (3, 4):
        summary = project.path / "runs" / job / f"seed-{seed}" / "summary.json"
        wait_for(summary.exists, f"seed {seed}")
        assert f"seed: {seed}" in summary.with_name("config.yaml").read_text()
    assert "done in " in (project.path / output).read_text()
    project.succeed("python3", "-m", project.package, "seeds", "--train.run_dir", f"runs/{job}")
    assert {row["runs"] for row in rows_in(project.path / "runs" / job / "seeds.csv")} == {"2"}


def test_what_is_submitted_is_what_files_and_the_script_of_the_job_say(project: Installed) -> None:
    dry = ["scripts/train.sh", "--dry-run", "--config", "configs/smoke.yaml"]
    assert "RUN_DIR=runs/smoke sbatch" in project.succeed(*dry)
    assert "RUN_DIR=runs/mine sbatch" in project.succeed(*dry, variables={"RUN_DIR": "runs/mine"})
    ask = f"from {project.package}.distributed import launcher as starts; from {project.package}.config import Size; "
    ask += "print(starts.command(Size.fixed(1, 1), ['sweep']))"
    script = project.path / "scripts" / "train.sbatch"
    before = script.read_text()
    mine = before.replace("--signal=USR1@60", "--signal=USR1@240").replace("slurm-%j.out", "logs/%x-%j.out")
    try:
        script.write_text(mine)
        for variables, signal in (
            ({"SBATCH_SIGNAL": ""}, "B:USR1@240"),
            ({"SBATCH_SIGNAL": "B:USR1@9"}, "B:USR1@9"),
        ):
            said = project.succeed("python3", "-c", ask, variables=variables)
            assert f"'--signal={signal}', '--array=1-1', '--output=logs/%x-%A_%a.out'" in said
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N 2 -J mine -o other-%j.out --signal=USR1@99 # as sbatch reads it\n{mine}"
        )
        script.write_text(
            script.read_text().replace("#SBATCH --signal", "##").replace("#SBATCH --output", "##")
        )
        said = project.succeed("python3", "-c", ask)
        assert "'--signal=B:USR1@99', '--array=1-1', '--output=other-%A_%a.out'" in said
        script.write_text(mine.replace("#SBATCH --signal", "##SBATCH --signal"))
        assert "--signal" not in project.succeed("python3", "-c", ask)
    finally:
        script.write_text(before)


@pytest.mark.seldom
def test_jobs_share_a_sweep_and_lose_nothing_when_they_are_preempted(project: Installed) -> None:
    tried = project.path / "tried.yaml"
    tried.write_text("optim:\n  lr: 1e-3..1e-2,log\n")
    asked = ["tried.yaml", "--trials", "3", "--pruner", "none", *LONG]
    size = {"JOBS": "2", "NNODES": "1", "NPROC_PER_NODE": "2", "SLURM_CONF": str(cluster.SLURM_CONF)}
    said = project.succeed("python3", "-m", project.package, "sweep", *asked, variables=size)
    # As for all settings, a job that begins later has those from when it was submitted.
    tried.write_text("optim:\n  lr: 1e-9..1e-8\n")
    found = re.match(r"job (\d+) is submitted; it writes runs/sweep\n", said)
    assert found, said
    outputs = [project.path / f"slurm-{found[1]}_{task}.out" for task in (1, 2)]
    sweep = project.path / "runs" / "sweep"
    for trial in (0, 1):
        wait_for((sweep / f"trial-{trial:04}" / "metrics.jsonl").exists, f"trial {trial}")
    urgent = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1"]
    assert wait_for_end(cluster.slurm("sbatch", "--parsable", *urgent).strip()) == "COMPLETED"

    def done() -> bool:
        rows = rows_in(sweep / "trials.csv") if (sweep / "trials.csv").exists() else []
        return [row["state"] for row in rows] == ["complete"] * 3

    wait_for(done, "all trials", 600)
    wait_for(nothing_runs_on_the_nodes, "the jobs to end", 60)
    said_by_each = [output.read_text() for output in outputs]
    assert all("stopped: the same command resumes" in said for said in said_by_each), said_by_each
    # The job that ended first has left the last trial to the other one.
    assert any("3 of 3 trials were trained to the end" in said for said in said_by_each), said_by_each
    assert len({row["optim.lr"] for row in rows_in(sweep / "trials.csv")}) == 3
    for trial in range(3):
        assert_every_epoch_once(project, f"runs/sweep/trial-{trial:04}")
        assert project.read_json(f"runs/sweep/trial-{trial:04}/summary.json")["world_size"] == 2


# Waits before the sweep starts a training, as the import of a large library would let it.
WAITS_BETWEEN_TRIALS = """
import pathlib, subprocess, sys, time

if "sweep" in sys.orig_argv:
    begin = subprocess.Popen

    class Popen(begin):
        def __init__(self, *arguments, **options):
            if "step" in str(arguments[0]):
                pathlib.Path(__file__).with_name("between").touch()
                time.sleep(5)
            super().__init__(*arguments, **options)

    subprocess.Popen = Popen
"""


@pytest.mark.seldom
def test_a_signal_between_two_trials_of_a_sweep_requeues_the_job(project: Installed, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WAITS_BETWEEN_TRIALS)
    asked = ["optim.lr=1e-3..1e-2,log", "--trials", "2", *LONG, "--train.run_dir", "runs/between"]
    size = {"NNODES": "1", "NPROC_PER_NODE": "1", "SLURM_CONF": str(cluster.SLURM_CONF)}
    command = ["python3", "-m", project.package, "sweep", *asked]
    said = project.succeed(*command, variables={**size, "PYTHONPATH": f"{tmp_path}:{project.path}/src"})
    job = f"{said.split()[1]}_1"
    wait_for((tmp_path / "between").exists, "the sweep")
    # As Slurm sends it, upon what the job has asked for: to the script alone.
    ask = f"from {project.package}.distributed import launcher as starts; from {project.package}.config import Size; "
    ask += "print(starts.command(Size.fixed(1, 1), ['sweep']))"
    assert "--signal=B:USR1@60" in project.succeed("python3", "-c", ask)
    cluster.slurm("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: int(job_state(job)["Restarts"]) == 1, "the job to be queued again")
    cluster.slurm("scancel", job)
    wait_for(nothing_runs_on_the_nodes, "the job to end", 60)


@pytest.mark.parametrize("starter", ["srun", pytest.param("torchrun", marks=pytest.mark.seldom)])
def test_the_time_limit_loses_nothing(project: Installed, starter: str) -> None:
    run = f"runs/limit-{starter}"
    limits = {"SBATCH_TIMELIMIT": "10", "SBATCH_SIGNAL": "USR1@100"}
    size = {"NNODES": "2", "NPROC_PER_NODE": "1"}
    # Slurm looks at the limits twice a minute: too many epochs to be done by then.
    endless = [*LONG, "--train.epochs", "500"]
    job = submit(project, *endless, RUN_DIR=run, STARTER=starter, **size, **limits)
    wait_for(lambda: "epoch 2/" in output_of(project, job), "the training")
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
    wait_for(lambda: "epoch 2/" in output_of(project, job), "the training")
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
    wait_for(lambda: "epoch 2/" in output_of(project, job), "the training")
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
    wait_for(lambda: "epoch 2/" in output_of(project, job), "the training")
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
        (["--data.batch_size", "63"], "choose 62 or 64"),
        (["--train.epoch", "3"], "did you mean train.epochs?"),
        (["--train.run_dir", "runs/x"], "choose the run directory with RUN_DIR=..."),
    ]
    for settings, sentence in cases:
        done = project.run("scripts/train.sh", *settings, extra={"SLURM_CONF": str(cluster.SLURM_CONF)})
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    done = project.run("scripts/train.sh", extra={"SLURM_CONF": str(cluster.SLURM_CONF), "SEEDS": "a-b"})
    assert (done.returncode, done.stderr) == (2, "error: SEEDS a-b must be seeds, such as 0,1,2 or 0-4\n")
    done = project.run("scripts/train.sh", "--train.seed", "3", extra={"SEEDS": "0-4"})
    assert (done.returncode, done.stderr) == (
        2,
        "error: leave out --train.seed, or SEEDS, which sets it for each job\n",
    )
    done = project.run("scripts/train.sh", extra={"JOBS": "2"})
    only = "error: leave out JOBS: only the trainings of sweep and seeds can be shared by several jobs\n"
    assert (done.returncode, done.stderr) == (2, only)
    done = project.run("python3", "-m", project.package, "seeds", "0,1", extra={"SEEDS": "0-4"})
    assert (done.returncode, "leave out SEEDS" in done.stderr, done.stderr.count("\n")) == (2, True, 1)
    done = project.run("python3", "-m", project.package, "seeds", "0,1", extra={"RUN_DIR": "runs/x"})
    assert (done.returncode, "leave out RUN_DIR" in done.stderr, done.stderr.count("\n")) == (2, True, 1)
    commands = Path(project.environment["VIRTUAL_ENV"], "bin")
    for needed in ("bash", "dirname"):
        (commands / needed).symlink_to(f"/bin/{needed}")
    done = project.run("scripts/train.sh", extra={"PATH": str(commands)})
    assert (done.returncode, done.stderr) == (1, "error: sbatch is not on the PATH: log in to the cluster\n")


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


def rows_in(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table, by the names of its columns."""
    with file.open() as lines:
        return list(csv.DictReader(lines))


def assert_every_epoch_once(project: Installed, run: str, epochs: int = EPOCHS) -> None:
    """A run that was stopped and went on has the record of one that was not."""
    assert project.epochs(run) == list(range(1, epochs + 1))
    assert project.read_json(f"{run}/summary.json")["weights_difference"] == 0.0
