"""Start trainings as a user does and read what they leave behind."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import pytest
import torch
from frame import checks, command_line, distributed, doctor
from jsonargparse import ArgumentParser
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

PACKAGE = "{{ cookiecutter.package_name }}"
TESTS = Path(__file__).parent
PROJECT = TESTS.parent
# The package with the small task, which has a configs/default.yaml of its own, and with yours.
FOLDERS = {"small": TESTS / "small", PACKAGE: PROJECT}
TIMEOUT_S = 300

# The tests run where the hardware may be missing, and compare what one thread computes.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ["OMP_NUM_THREADS"] = "1"
# A tracker is told of trainings, not of tests.
os.environ["TRACKING"] = "off"
torch.set_num_threads(1)
# Where the processes that the tests start find the small task, and all that this one finds, from any folder.
folders = [str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it said."""

    code: int
    output: str
    errors: str


def call(*arguments: str, package: str = "small") -> Answer:
    """Run one command of the package in this process; skip the test where what this project trains with is missing."""
    main = importlib.import_module(f"{package}.__main__").main
    with (
        working_in(FOLDERS[package]),
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
    ):
        code = main([*arguments, *distributed.TRIAL])
    if code and (reason := reason_not_to_start(1)) and reason in errors.getvalue():
        pytest.skip(reason)
    return Answer(code, output.getvalue(), errors.getvalue())


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Be in ``folder`` inside the ``with`` block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run(command: list[str], folder: Path = PROJECT) -> Answer:
    """Run any command in a folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session", autouse=True)
def looked_at_this_machine() -> None:
    """Know what is missing here before a test lets something else be missing, and let torch know the device."""
    if not reason_not_to_start(1):
        # A backward pass on the CPU before that would keep torch from any on some devices.
        torch.empty(0, device=idist.device())


@pytest.fixture(autouse=True)
def logs_can_be_read() -> Iterator[None]:
    """Let caplog see what a later test logs: a training in this process keeps it from the loggers above."""
    yield
    logging.getLogger("small").propagate = True


def settings_here(*settings: str) -> Any:
    """Return all settings of a trial on this machine, which may lack the hardware."""
    parser = ArgumentParser(exit_on_error=False)
    command_line.add_settings(parser)
    with working_in(FOLDERS["small"]):
        config, _ = command_line.parse(parser, [*settings, *distributed.TRIAL])
    return distributed.resolve(config)


@lru_cache
def reason_not_to_start(processes: int) -> str:
    """Return why so many processes of this project cannot run on this machine, or nothing."""
    nproc = ["--distributed.nproc_per_node", str(processes), "--data.batch_size", str(processes)]
    # These processes need this machine alone, not the cluster.
    examined = doctor.examine(settings_here(*nproc), [processes])
    needed = (check for check in examined if check.name != "cluster")
    return next((f"{check.found}: {check.fix}" for check in needed if not check.ok), "")


def launch(processes: int, *arguments: str, package: str = "small", copies: bool = True) -> Answer:
    """Run a package in ``processes`` processes of this machine and expect success; a single one is this process."""
    if reason := reason_not_to_start(processes):
        pytest.skip(f"{processes} processes cannot run here: {reason}")
    if processes == 1:
        answer = call(*arguments, "--distributed.nproc_per_node", "1", package=package)
    else:
        answer = start(processes, *arguments, package=package, copies=copies)
    assert answer.code == 0, answer.errors
    return answer


def start(processes: int, *arguments: str, package: str = "small", copies: bool = True) -> Answer:
    """Run a package in ``processes`` other processes of this machine.

    They are copies of one, where the backend lets them meet without a launcher: to start others and import torch would take
    longer than what they do. Without ``copies``, the launcher starts them.
    """
    if copies and (TESTS / "ranks.py").exists() and distributed.transport.RENDEZVOUS:
        return run_copies(processes, [*arguments, *distributed.TRIAL], package)
    own = importlib.import_module(f"{package}.distributed")
    return run(own.local_command(processes, [*arguments, *distributed.TRIAL]), FOLDERS[package])


@lru_cache
def process_to_copy() -> subprocess.Popen[str]:
    """Start tests/ranks.py, once for all tests; it ends with this process, or with a rank that does not."""
    command = [sys.executable, str(TESTS / "ranks.py")]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True
    )


def run_copies(processes: int, arguments: list[str], package: str) -> Answer:
    """Run a package in so many copies of one process, which meet as those of a launcher do."""
    # What a test has set since that process began.
    variables = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checks.free_port())}
    server = process_to_copy()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as files:
        request = {"processes": processes, "arguments": arguments, "package": package, "variables": variables}
        request |= {"files": files, "folder": str(FOLDERS[package])}
        print(json.dumps(request), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], TIMEOUT_S)[0]:
            os.killpg(server.pid, signal.SIGKILL)
            process_to_copy.cache_clear()
        said = server.stdout.readline()
        texts = [
            "".join(file.read_text() for file in sorted(Path(files).glob(f"{name}-*"))) for name in ("output", "errors")
        ]
    if not said:
        raise TimeoutError(f"{arguments} did not end within {TIMEOUT_S} s:\n{texts[1]}")
    # The first one that failed has ended the others.
    return Answer(next(filter(None, json.loads(said)), 0), *texts)


@pytest.fixture
def every_sample(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Let trainings in this process call a function with the index of each training sample before they read it."""
    training = importlib.import_module("small.training")
    load = training.load_data

    class Watched(torch.utils.data.Dataset[Any]):
        def __init__(self, samples: Any, before: Callable[[int], None]) -> None:
            self.samples, self.before = samples, before

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            self.before(index)
            return self.samples[index]

    def every_sample(before: Callable[[int], None]) -> None:
        def watched(settings: Any) -> Any:
            data = load(settings)
            return data._replace(train=Watched(data.train, before))

        monkeypatch.setattr(training, "load_data", watched)

    return every_sample


@dataclass(frozen=True)
class Run:
    """A run directory that a training has left, and what it logged."""

    path: Path
    log: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "steps.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    def checkpoint(self) -> Path:
        return max((self.path / "checkpoints").glob("last_*"), key=lambda file: file.stat().st_mtime)

    def saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = torch.load(self.checkpoint(), weights_only=True)
        return saved

    def weights(self) -> dict[str, torch.Tensor]:
        if self.checkpoint().is_dir():
            # As torch's own tool reads what all ranks have written.
            file = self.path / "whole.pt"
            dcp_to_torch_save(self.checkpoint(), file)
            parts = torch.load(file, weights_only=True).items()
            return {name.removeprefix("model/"): part for name, part in parts if name.startswith("model/")}
        weights: dict[str, torch.Tensor] = self.saved()["model"]
        return weights


def train(run_dir: Path, processes: int, *settings: str, package: str = "small", copies: bool = True) -> Run:
    """Train in ``processes`` processes, as ``launch`` starts them, and return the run directory."""
    arguments = ("train", "--train.run_dir", str(run_dir), *settings)
    return Run(run_dir, launch(processes, *arguments, package=package, copies=copies).errors)
