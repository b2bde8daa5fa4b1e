"""How a training is started: by a plain Python command, on one machine.

NPROC_PER_NODE  processes (default: 2 in a project for CPUs, else one for each device)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check
from ..config import PACKAGE, Ranks, Size
from . import starter

NAME = "spawn"
ELSEWHERE = False  # the training runs where it is started
QUEUED = False  # it does not wait in a queue, where its settings would have to be kept
RESUME = "the same command"  # what resumes a stopped training
# no single command starts the processes of many nodes, and waits for them
ON_NODES: dict[str, str] | None = None


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes will train together."""
    return Size.fixed(1, nproc_per_node)


def command(size: Size, settings: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that trains."""
    return ["python3", "-m", PACKAGE, "train", *settings]


def trial() -> list[str] | None:
    """Return the command that trains once and waits for the end, without its settings."""
    return [sys.executable, "-m", PACKAGE, "launch"]


def start(command: list[str], run_dir: Path) -> int:
    """Become ``command``, so that its signals and its exit code are the training's own."""
    os.execvp(command[0], command)


def ranks() -> Ranks | None:
    """Return which process this is, if the training's parent started it."""
    return starter.ranks()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a training."""
    yield from starter.checks()
