"""What shows on a GPU only: every lever, and steps that never wait for the device. ``nox -s gpu``

Without a GPU, the same trainings run on the CPU in two processes, as far as it has the lever; they show that the tests work.
"""

from pathlib import Path

import pytest
from baking import Target
from installing import Installed, Installer
from launching import train

pytestmark = pytest.mark.gpu

TARGET = Target("gpu", "nccl", "torchrun")
CPU = ("--distributed.device", "cpu")
EPOCHS = ("--train.epochs", "8")
ACCURACY = 0.95
# What a CPU refuses, by its own sentence.
ON_GPU_ONLY = ("sync_batchnorm", "bf16 gradients")
LEVERS = {
    "bf16": ("--train.amp", "bf16"),
    "fp16": ("--train.amp", "fp16"),
    "bf16 compile": ("--train.amp", "bf16", "--train.compile", "true"),
    "channels_last tf32": ("--train.channels_last", "true", "--train.matmul_precision", "high"),
    "sync_batchnorm": ("--task.model", "resnet", "--distributed.sync_batchnorm", "true"),
    "zero1": ("--distributed.strategy", "zero1"),
    "fsdp2": ("--distributed.strategy", "fsdp2"),
    "fsdp2 bf16": ("--distributed.strategy", "fsdp2", "--train.amp", "bf16"),
    "local-sgd": ("--distributed.strategy", "local-sgd"),
    "fp16 gradients": ("--distributed.compression", "fp16"),
    "bf16 gradients": ("--distributed.compression", "bf16"),
    "powersgd": ("--distributed.compression", "powersgd"),
    "static graph": ("--distributed.static_graph", "true", "--distributed.bucket_mib", "1"),
    "average": ("--optim.ema_decay", "0.98"),
    "trace": ("--train.profile", "torch"),
    "workers": ("--data.num_workers", "2"),
}


@pytest.fixture(scope="module")
def project(install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(TARGET, tmp_path_factory.mktemp("gpu"))


@pytest.mark.parametrize("lever", LEVERS)
def test_every_lever_learns(project: Installed, lever: str) -> None:
    gpus = project.gpus()
    settings = [*EPOCHS, *LEVERS[lever], *(() if gpus else CPU)]
    processes = str(gpus or 2)
    run_dir = f"runs/{lever.replace(' ', '-')}"
    if not gpus and lever in ON_GPU_ONLY:
        refused = project.run(
            "scripts/train.sh", *settings, "--train.run_dir", run_dir, extra={"NPROC_PER_NODE": processes}
        )
        assert (refused.returncode != 0, "error: " in refused.stderr) == (True, True), refused.stderr
        return
    train(project, TARGET, *settings, run_dir=run_dir, processes=processes)
    summary = project.read_json(f"{run_dir}/summary.json")
    assert (summary["device"] == "cpu") == (gpus == 0)
    assert summary["weights_difference"] == 0.0
    assert summary["val_accuracy"] >= ACCURACY
    if gpus and lever == "trace":
        assert (project.path / run_dir / "profile" / "memory_0.pickle").stat().st_size > 1000


# Prints the largest difference between the weights and statistics of two checkpoints.
DIFFERENCE = """
import sys, torch
first, second = (torch.load(path, map_location="cpu", weights_only=True)["model"] for path in sys.argv[1:])
print(max(float((first[name].double() - second[name].double()).abs().max()) for name in first))
"""


def test_sync_batchnorm_normalizes_over_all_processes(install: Installer, tmp_path: Path) -> None:
    """Two processes, each with half of every batch, end as one process does that has all of it."""
    project = install(Target("gpu", "gloo", "torchrun"), tmp_path)
    gpus = project.gpus()
    if not gpus:
        pytest.skip("torch has no SyncBatchNorm for the CPU, which test_every_lever_learns sees refused")
    if gpus == 1:
        # Both compute on the only one, which gloo allows.
        hardware = project.path / "src" / project.package / "distributed" / "hardware.py"
        source = hardware.read_text()
        assert "set_device(local_rank)" in source
        source = source.replace("torch.cuda.device_count()", "2").replace(
            "set_device(local_rank)", "set_device(0)"
        )
        hardware.write_text(source)
    settings = [
        "--task.model",
        "resnet",
        "--optim.name",
        "sgd",
        "--optim.lr",
        "0.05",
        "--optim.warmup",
        "0steps",
    ]
    settings += ["--train.max_iterations", "8", "--data.batch_size", "64"]

    def weights(processes: str, synchronized: str) -> str:
        run_dir = f"runs/{processes}-{synchronized}"
        project.succeed(
            "scripts/train.sh",
            *(*settings, "--train.run_dir", run_dir, "--distributed.sync_batchnorm", synchronized),
            NPROC_PER_NODE=processes,
            # Convolutions of other sizes round otherwise.
            NVIDIA_TF32_OVERRIDE="0",
        )
        assert project.read_json(f"{run_dir}/summary.json")["device"] != "cpu"
        (file,) = (project.path / run_dir / "checkpoints").glob("last_*.pt")
        return str(file)

    alone, together, apart = weights("1", "false"), weights("2", "true"), weights("2", "false")
    difference = float(project.succeed("python3", "-c", DIFFERENCE, alone, together))
    assert difference < 1e-3
    assert float(project.succeed("python3", "-c", DIFFERENCE, alone, apart)) > 10 * difference


# Loaded in every process: between two steps of the log, whatever waits for the GPU raises an error.
NO_WAITING = """
import sys
import torch
from ignite.engine import Events
training = sys.modules["{package}.training"]
create_trainer = training.create_trainer
def strict(*arguments):
    trainer = create_trainer(*arguments)
    def allow(mode):
        if torch.cuda.is_initialized():
            torch.cuda.set_sync_debug_mode(mode)
            print("step", trainer.state.iteration, mode, file=sys.stderr)
    # The first steps reserve memory, and tell what they draw.
    trainer.add_event_handler(Events.ITERATION_STARTED(once=21), allow, "error")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=39), allow, "default")
    return trainer
training.create_trainer = strict
"""


@pytest.mark.parametrize("settings", [(), ("--train.amp", "bf16", "--optim.clip_norm", "1")])
def test_no_step_waits_for_the_device(install: Installer, settings: tuple[str, ...], tmp_path: Path) -> None:
    project = install(TARGET, tmp_path)
    package = project.path / "src" / project.package
    (package / "no_waiting.py").write_text(NO_WAITING.format(package=project.package))
    training = package / "training.py"
    training.write_text(training.read_text() + "\n\nfrom . import no_waiting  # noqa: E402, F401\n")
    gpus = project.gpus()
    trial = () if gpus else CPU
    steps = ("--train.max_iterations", "40", "--train.log_every", "20", "--train.evaluate_every", "40 steps")
    done = project.run(
        "scripts/train.sh", *steps, *settings, *trial, extra={"NPROC_PER_NODE": str(gpus or 2)}
    )
    assert done.returncode == 0, done.stderr
    assert ("step 21 error" in done.stderr) == (gpus > 0), done.stderr
