"""Bake a target, install it from the rendered project alone, start its own launcher, and check what was learned."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matrix
import pytest
from baking import ROOT, TARGETS, Target
from conftest import Bake

pytestmark = pytest.mark.executed

CONSTRAINTS = ROOT / "tests" / "constraints.txt"
INSTALL_LIMIT_S = 900
COMMAND_LIMIT_S = 600
TRAINING_LIMIT_S = 60

# Targets whose launcher runs on one machine with the torch wheel alone.
NATIVE = [
    target
    for target in TARGETS
    if target.backend in ("gloo", "nccl") and target.launcher in ("torchrun", "spawn")
]


@dataclass(frozen=True)
class Installed:
    """A rendered project in an environment of its own."""

    path: Path
    package: str
    environment: dict[str, str]

    def run(
        self, *command: str, limit_s: float = COMMAND_LIMIT_S, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder and environment."""
        return subprocess.run(
            command,
            cwd=self.path,
            env=self.environment | dict(extra or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def succeed(self, *command: str, **extra: str) -> str:
        """Run a command that has to end well; return what it printed."""
        done = self.run(*command, extra=extra)
        assert done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout


def install(
    bake: Bake, target: Target, tmp_path: Path, extras: str = "dev", **answers: str | bool
) -> Installed:
    """Bake ``target`` and install it in a fresh environment, with nothing but what its own files ask for."""
    baked = bake(**target._asdict(), **answers)
    project = tmp_path / "project"
    shutil.copytree(baked.path, project)
    venv = tmp_path / "venv"
    kept = ("HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_HOME", "LD_LIBRARY_PATH")
    environment = {
        key: value for key, value in os.environ.items() if key in kept or key.startswith(("PIP_", "UV_"))
    }
    # nox points it at the environment of the tests.
    environment.pop("UV_PYTHON", None)
    environment |= {
        "PATH": f"{venv / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "UV_CONSTRAINT": str(CONSTRAINTS),
        "PIP_CONSTRAINT": str(CONSTRAINTS),
    }
    installed = Installed(project, baked.package, environment)
    installed.succeed("uv", "venv", "--quiet", "--python", sys.executable, str(venv))
    pip = ("uv", "pip", "install", "--python", str(venv), "-e", f".[{extras}]")
    done = installed.run(*pip, limit_s=INSTALL_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return installed


def has_gpu(project: Installed) -> bool:
    """Tell whether the project's own torch sees a GPU."""
    answer = project.succeed("python3", "-c", "import torch; print(torch.cuda.device_count())")
    return int(answer) > 0


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("target", NATIVE, ids=str)
def test_the_target_trains_evaluates_and_resumes(bake: Bake, target: Target, tmp_path: Path) -> None:
    project = install(bake, target, tmp_path)
    stand_in = target.hardware == "gpu" and not has_gpu(project)
    trial = ["--distributed.device", "cpu", "--distributed.backend", "gloo"] if stand_in else []
    processes = "2" if target.hardware == "cpu" or stand_in else ""

    project.succeed("python3", "-m", project.package, "doctor", *trial)
    started = time.monotonic()
    project.succeed("scripts/train.sh", *trial, NPROC_PER_NODE=processes)
    seconds = time.monotonic() - started

    run = project.path / "runs" / "default"
    summary = read_json(run / "summary.json")
    assert seconds < TRAINING_LIMIT_S
    assert summary["val_accuracy"] >= 0.97
    assert summary["weights_difference"] == 0.0
    assert summary["world_size"] == int(processes or summary["world_size"])
    assert summary["launcher"] == target.launcher
    assert summary["hardware"] == target.hardware
    assert summary["backend"] == ("gloo" if stand_in else target.backend)
    assert (summary["device"] == "cpu") == (stand_in or target.hardware == "cpu")

    checkpoint = max((run / "checkpoints").glob("last_*.pt"), key=lambda file: file.stat().st_mtime)
    evaluate = ["python3", "-m", project.package, "evaluate", "--checkpoint", str(checkpoint), *trial]
    metrics = json.loads(project.succeed(*evaluate))
    assert {key: metrics[key] for key in ("val_loss", "val_accuracy")} == {
        key: summary[key] for key in ("val_loss", "val_accuracy")
    }

    project.succeed("scripts/train.sh", *trial, "--train.epochs", "17", NPROC_PER_NODE=processes)
    resumed = read_json(run / "summary.json")
    assert resumed["epoch"] == 17
    assert Path(resumed["resumed_from"]).name == checkpoint.name
    assert [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(
        range(1, 18)
    )

    print(project.succeed("pytest", "-q", "-p", "no:cacheprovider"))

    versions = f"torch {summary['versions']['torch']}, ignite {summary['versions']['ignite']}"
    status = f"stand-in: gloo on CPU, by {target.launcher}" if stand_in else "executed"
    if target.hardware == "gpu" and not stand_in:
        status = f"executed on GPU ({summary['device']})"
    matrix.record(target, status, str(summary["world_size"]), versions)


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_what_cannot_work_is_refused_before_training(bake: Bake, launcher: str, tmp_path: Path) -> None:
    project = install(bake, Target("cpu", "gloo", launcher), tmp_path)
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
            (1, "cannot be written", ["--train.run_dir", "/proc/run"], {}),
            (1, f"MASTER_PORT {port}", [], {"MASTER_PORT": port}),
            (1, "pip install -e '.[vision]'", ["--data.dataset", "cifar10"], {}),
        ]
        for code, sentence, settings, environment in cases:
            done = project.run("scripts/train.sh", *settings, limit_s=60, extra=environment)
            assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
    finally:
        occupied.kill()
        occupied.wait()
    assert not (project.path / "runs").exists()


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
    bake: Bake, backend: str, tmp_path: Path
) -> None:
    project = install(bake, Target("gpu", backend, "spawn"), tmp_path)
    for command in (["doctor", "--quiet"], ["train"]):
        two = project.run("python3", "-c", ONE_GPU, *command, "--distributed.nproc_per_node", "2", limit_s=60)
        assert two.returncode == 1
        assert (
            two.stderr
            == "error: 1 x a GPU, 2 processes per node: start at most 1 processes per node, one for each GPU\n"
        )
    project.succeed("python3", "-c", ONE_GPU, "doctor", "--quiet", "--distributed.nproc_per_node", "1")
    # As a launcher starts it, with no doctor before.
    for local_rank, said in (
        ("1", "error: more processes than GPUs: start at most 1 on each node\n"),
        ("2", ""),
    ):
        place = {"RANK": local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": "3"}
        started = project.run("python3", "-c", ONE_GPU, "train", limit_s=60, extra=place)
        assert (started.returncode, started.stderr) == (1, said)


def test_a_gpu_project_without_a_gpu_says_how_to_try_it(bake: Bake, tmp_path: Path) -> None:
    project = install(bake, Target("gpu", "nccl", "torchrun"), tmp_path)
    if has_gpu(project):
        done = project.run("scripts/train.sh", extra={"NPROC_PER_NODE": "99"})
        assert "start at most" in done.stderr
    else:
        done = project.run("scripts/train.sh")
        assert "--distributed.device cpu --distributed.backend gloo" in done.stderr
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


def test_a_folder_of_images_is_learned_and_a_failed_download_ends_every_process(
    bake: Bake, tmp_path: Path
) -> None:
    project = install(bake, Target("cpu", "gloo", "spawn"), tmp_path)
    project.succeed("uv", "pip", "install", "--python", str(tmp_path / "venv"), "--no-deps", TORCHVISION)
    (project.path / "sitecustomize.py").write_text(STAND_IN_FOR_COMPILED_OPERATORS)
    project.succeed("python3", "-c", DIGITS_AS_FILES, "images")
    settings = [
        "--data.dataset",
        "folder",
        "--data.root",
        "images",
        "--data.image_size",
        "8",
        "--data.num_workers",
        "1",
    ]
    project.succeed("scripts/train.sh", *settings, "--train.epochs", "6", PYTHONPATH=str(project.path))
    summary = read_json(project.path / "runs" / "default" / "summary.json")
    assert summary["val_accuracy"] >= 0.95

    # Nothing answers at the address of the download.
    settings = ["--data.dataset", "cifar10", "--train.run_dir", "runs/cifar10"]
    blocked = {"https_proxy": "http://127.0.0.1:9", "PYTHONPATH": str(project.path)}
    done = project.run("scripts/train.sh", *settings, limit_s=60, extra=blocked)
    assert done.returncode == 1
    assert done.stderr.count("error: could not download CIFAR-10") == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_the_tracker_and_the_notebook_show_a_training(bake: Bake, tmp_path: Path) -> None:
    target = Target("cpu", "gloo", "torchrun")
    project = install(bake, target, tmp_path, extras="notebook", tracker="tensorboard", use_notebook=True)
    project.succeed("jupyter", "execute", "--inplace", "notebooks/train.ipynb")
    run = project.path / "runs" / "notebook"
    assert read_json(run / "summary.json")["val_accuracy"] >= 0.97
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    cells = read_json(project.path / "notebooks" / "train.ipynb")["cells"]
    assert "image/png" in cells[-1]["outputs"][0]["data"]
    assert "'epoch': 15" in "".join(cells[-2]["outputs"][0]["data"]["text/plain"])


def test_every_target_is_typed(bake: Bake, tmp_path: Path) -> None:
    project = install(bake, Target("cpu", "gloo", "torchrun"), tmp_path)
    for target in TARGETS:
        other = bake(**target._asdict(), tracker="tensorboard")
        shutil.rmtree(project.path)
        shutil.copytree(other.path, project.path)
        # The answers of torch's types do not depend on the target: one cache serves all.
        project.succeed("mypy", "--cache-dir", str(tmp_path / "mypy"))


def test_the_projects_own_nox_sessions_pass(bake: Bake, tmp_path: Path) -> None:
    project = install(bake, Target("cpu", "gloo", "spawn"), tmp_path)
    project.succeed("nox", "--session", "lint")
    project.succeed("nox", "--session", "tests", "--", "-q", "-k", "test_data or test_config")
