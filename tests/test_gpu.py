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
LEVERS = {
    "bf16": ("--train.amp", "bf16"),
    "fp16": ("--train.amp", "fp16"),
    "bf16 compile": ("--train.amp", "bf16", "--train.compile", "true"),
    "zero1": ("--distributed.strategy", "zero1"),
    "fsdp2": ("--distributed.strategy", "fsdp2"),
    "local-sgd": ("--distributed.strategy", "local-sgd"),
    "average": ("--optim.ema_decay", "0.98"),
    "trace": ("--train.profile", "torch"),
    "workers": ("--data.num_workers", "2"),
}


@pytest.fixture(scope="module")
def project(install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(TARGET, tmp_path_factory.mktemp("gpu"), use_strategies=True)


@pytest.mark.parametrize("lever", LEVERS)
def test_every_lever_learns(project: Installed, lever: str) -> None:
    gpus = project.gpus()
    settings = [*EPOCHS, *LEVERS[lever], *(() if gpus else CPU)]
    processes = str(gpus or 2)
    run_dir = f"runs/{lever.replace(' ', '-')}"
    train(project, TARGET, *settings, run_dir=run_dir, processes=processes)
    summary = project.read_json(f"{run_dir}/summary.json")
    assert (summary["device"] == "cpu") == (gpus == 0)
    assert summary["weights_difference"] == 0.0
    assert summary["val_accuracy"] >= ACCURACY


# Loaded in every process: between two steps of the log, whatever waits for the GPU raises an error.
NO_WAITING = """
import sys
import torch
from ignite.engine import Events
training = sys.modules["{package}.train"]
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
    training = package / "train.py"
    training.write_text(training.read_text() + "\n\nfrom . import no_waiting  # noqa: E402, F401\n")
    gpus = project.gpus()
    trial = () if gpus else CPU
    steps = ("--train.max_iterations", "40", "--train.log_every", "20", "--train.evaluate_every", "40 steps")
    done = project.run(
        "scripts/train.sh", *steps, *settings, *trial, extra={"NPROC_PER_NODE": str(gpus or 2)}
    )
    assert done.returncode == 0, done.stderr
    assert ("step 21 error" in done.stderr) == (gpus > 0), done.stderr
