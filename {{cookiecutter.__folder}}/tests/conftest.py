"""Start trainings as a user does and read what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from {{ cookiecutter.package_name }} import distributed

PACKAGE = "{{ cookiecutter.package_name }}"
PROJECT = Path(__file__).parent.parent
TIMEOUT_S = 300

# The tests run where the hardware may be missing.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ["OMP_NUM_THREADS"] = "1"


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's folder."""
    return subprocess.run(
        command,
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m PACKAGE`` with ``arguments`` in one process."""
    return run([sys.executable, "-m", PACKAGE, *arguments], **environment)


@dataclass(frozen=True)
class Run:
    """A run directory that a training has left."""

    path: Path
    log: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    def checkpoint(self, kind: str = "last") -> Path:
        files = sorted((self.path / "checkpoints").glob(f"{kind}_*.pt"), key=lambda file: file.stat().st_mtime)
        return files[-1]

    def weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = torch.load(self.checkpoint(), weights_only=True)["model"]
        return weights


@lru_cache
def reason_not_to_start(processes: int) -> str:
    """Return why so many processes of this project cannot run on this machine, or nothing."""
    nproc = ("--distributed.nproc_per_node", str(processes), "--data.batch_size", str(processes))
    return call("doctor", "--quiet", *distributed.TRIAL, *nproc).stderr.strip()


def launch(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this package in ``processes`` processes, started as this project starts them, and expect success."""
    if reason := reason_not_to_start(processes):
        pytest.skip(f"{processes} processes cannot run here: {reason}")
    result = run(distributed.local_command(processes, [*arguments, *distributed.TRIAL]))
    assert result.returncode == 0, result.stderr
    return result


def train(run_dir: Path, processes: int, *settings: str) -> Run:
    """Train in ``processes`` processes and return the run directory."""
    return Run(run_dir, launch(processes, "train", "--train.run_dir", str(run_dir), *settings).stderr)
