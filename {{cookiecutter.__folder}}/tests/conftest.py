"""Start trainings as a user does and read what they leave behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser

from {{ cookiecutter.package_name }} import distributed
from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.config import add_settings, parse
from {{ cookiecutter.package_name }}.doctor import examine

PACKAGE = "{{ cookiecutter.package_name }}"
PROJECT = Path(__file__).parent.parent
TIMEOUT_S = 300

# The tests run where the hardware may be missing, and compare what one thread computes.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it said."""

    code: int
    output: str
    errors: str


def call(*arguments: str) -> Answer:
    """Run one command of the package in this process."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = main([*arguments, *distributed.TRIAL])
    return Answer(code, output.getvalue(), errors.getvalue())


def run(command: list[str]) -> Answer:
    """Run any command in the project's folder."""
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


@lru_cache
def reason_not_to_start(processes: int) -> str:
    """Return why so many processes of this project cannot run on this machine, or nothing."""
    parser = ArgumentParser(exit_on_error=False)
    add_settings(parser)
    nproc = ["--distributed.nproc_per_node", str(processes), "--data.batch_size", str(processes)]
    config, _ = parse(parser, [*nproc, *distributed.TRIAL])
    # These processes need this machine alone, not the cluster.
    examined = examine(distributed.resolve(config), [processes])
    needed = (check for check in examined if check.name != "cluster")
    return next((f"{check.found}: {check.fix}" for check in needed if not check.ok), "")


def launch(processes: int, *arguments: str) -> Answer:
    """Run this package in ``processes`` processes, started as this project starts them, and expect success.

    A single process is this one: to start another and import torch would take longer than what it does.
    """
    if reason := reason_not_to_start(processes):
        pytest.skip(f"{processes} processes cannot run here: {reason}")
    if processes == 1:
        answer = call(*arguments, "--distributed.nproc_per_node", "1")
    else:
        answer = run(distributed.local_command(processes, [*arguments, *distributed.TRIAL]))
    assert answer.code == 0, answer.errors
    return answer


@dataclass(frozen=True)
class Run:
    """A run directory that a training has left, and what it logged."""

    path: Path
    log: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    def checkpoint(self) -> Path:
        return max((self.path / "checkpoints").glob("last_*.pt"), key=lambda file: file.stat().st_mtime)

    def weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = torch.load(self.checkpoint(), weights_only=True)["model"]
        return weights


def train(run_dir: Path, processes: int, *settings: str) -> Run:
    """Train in ``processes`` processes and return the run directory."""
    return Run(run_dir, launch(processes, "train", "--train.run_dir", str(run_dir), *settings).errors)
