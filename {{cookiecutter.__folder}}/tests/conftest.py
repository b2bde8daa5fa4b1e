"""Start runs as a user does, and read what they leave behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

PACKAGE = "{{ cookiecutter.package_name }}"
PROJECT = Path(__file__).parents[1]
# Ends a run that hangs; the longest takes less than a minute.
TIMEOUT_S = 900
# Fields of TaskConfig with a value that makes results the same on any number of processes. Extend it for your task.
SAME_EVERYWHERE = {"dropout": "0"}
# A run of several evaluations and checkpoints, whose last steps are not at the end of an epoch.
SHORT = ["--train.max_iterations=24", "--train.evaluate_every=8 steps", "--train.save_every=4 steps"]
SHORT += ["--train.log_every=2", "--optim.warmup=4 steps"]
# Logged values that depend on the machine.
TIMED = {"samples_per_second", "data_wait", "device_memory_mib"}

# One thread adds numbers in the same order each time, and TF32 would round more where a process has more samples.
os.environ.update(OMP_NUM_THREADS="1", NVIDIA_TF32_OVERRIDE="0", TRACKING="off")
os.environ.setdefault("PJRT_DEVICE", "CPU")


def pytest_sessionstart() -> None:
    """Exit if Python imports another copy of this project: the tests would test that one."""
    spec = importlib.util.find_spec(PACKAGE)
    found = Path(str(spec.origin)).resolve().parent if spec else "nowhere"
    if found != (PROJECT / "src" / PACKAGE).resolve():
        pytest.exit(f"Python imports {PACKAGE} from {found}. Run python3 -m pip install -e {PROJECT}", 2)


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Run:
    """A run directory, and what the run logged."""

    path: Path
    log: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Evaluations: the lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Log points: the lines of steps.jsonl."""
        return [json.loads(line) for line in (self.path / "steps.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    def checkpoint(self, kind: str = "last") -> Path:
        """Return the newest checkpoint of a kind."""
        return max((self.path / "checkpoints").glob(f"{kind}_*.pt"), key=lambda file: int(file.stem.split("_")[1]))

    def saved(self, kind: str = "last") -> dict[str, Any]:
        """Return the content of the newest checkpoint of a kind."""
        saved: dict[str, Any] = torch.load(self.checkpoint(kind), weights_only=True)
        return saved

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights of the newest checkpoint."""
        weights: dict[str, torch.Tensor] = self.saved()["model"]
        return weights


def execute(command: list[str], **variables: str) -> Answer:
    """Run a command in the project's folder, with variables added to the environment."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def call(*arguments: str) -> Answer:
    """Run a command of the package, such as ``call("train", "--help")``."""
    return execute(["python3", "-m", PACKAGE, *arguments])


def start(processes: int, *arguments: str, program: tuple[str, ...] = ("-m", PACKAGE), **variables: str) -> Answer:
    """Run a command of the package in processes of this machine; skip the test if the machine lacks what they need.

    Args:
        program: arguments of python3 before those of the command.
    """
    if lacking := what_is_lacking(processes):
        pytest.skip(lacking)
    settings = ["--distributed.nproc_per_node", str(processes), *settings_here()]
    prefix = import_module(f"{PACKAGE}.runtime.process.local").prefix(processes)
    return execute([*prefix, "python3", *program, *arguments, *settings], **variables)


def train(run_dir: Path, processes: int, *settings: str, program: tuple[str, ...] = ("-m", PACKAGE)) -> Run:
    """Train in processes of this machine, with success."""
    answer = start(processes, "train", "--train.run_dir", str(run_dir), *settings, program=program)
    assert answer.code == 0, answer.errors
    return Run(run_dir, answer.errors)


@cache
def settings_here() -> list[str]:
    """Return the settings that make results the same everywhere, on CPUs if this machine has too few GPUs."""
    fields = import_module(f"{PACKAGE}.task.settings").TaskConfig.__dataclass_fields__
    settings = [f"--task.{name}={value}" for name, value in SAME_EVERYWHERE.items() if name in fields]
    hardware = import_module(f"{PACKAGE}.runtime.process.hardware")
    on_cpu = hardware.DEVICE == "cuda" and torch.cuda.device_count() < 2
    return [*settings, *(["--distributed.device=cpu"] if on_cpu else [])]


@cache
def what_is_lacking(processes: int) -> str:
    """Return what this machine lacks to run so many processes of this project, or an empty text."""
    runtime, config = import_module(f"{PACKAGE}.runtime"), import_module(f"{PACKAGE}.config")
    process = import_module(f"{PACKAGE}.runtime.process.start")
    parse = import_module(f"{PACKAGE}.runtime.settings").parse
    options = [*settings_here(), "--distributed.nproc_per_node", str(processes)]
    try:
        resolved = process.resolve(parse(config.Config, runtime.Command("", ""), options)[0])
        # The processes are on this machine: a cluster is not needed.
        failed = [check.found for check in process.checks(resolved) if not (check.ok or check.name == "cluster")]
    except runtime.UsageError as error:
        failed = [str(error)]
    prefix = process.local.prefix(processes)
    if prefix and not shutil.which(prefix[0]):
        failed.append(f"{prefix[0]} is not on the PATH")
    return "; ".join(failed)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one process."""
    return train(tmp_path_factory.mktemp("alone") / "run", 1, *SHORT, "--optim.ema_decay=0.9")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run in two processes."""
    return train(tmp_path_factory.mktemp("pair") / "run", 2, *SHORT, "--optim.ema_decay=0.9")


def assert_equal(first: Any, second: Any) -> None:
    """Compare nested tensors, numbers and texts bit for bit."""
    (ours, structure), (theirs, other) = map(tree_flatten, (first, second))
    assert structure == other
    for one, another in zip(ours, theirs, strict=True):
        assert torch.equal(one, another) if isinstance(one, torch.Tensor) else one == another


def assert_same_steps(one: Run, other: Run) -> None:
    """Compare what two runs in float64 logged of their steps, and their weights: see in_float64.py."""
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        # Logged with six digits.
        assert {name: mine[name] for name in mine.keys() - TIMED} == pytest.approx(
            {name: theirs[name] for name in theirs.keys() - TIMED}, rel=1e-5
        )
    assert_close(one.weights(), other.weights(), rtol=0, atol=1e-10)
