"""Start a run by a plain Python command, on one machine.

NPROC_PER_NODE  processes (default: 2 on CPUs, else one for each device)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check
from . import Size

NAME = "spawn"
ELSEWHERE = False  # whether runs start on other machines
RESUME = "the same command"  # what resumes a stopped run
ENDS_WITH_LAUNCHER = False  # whether the kernel ends a process with its parent
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # of rank, world size, local rank, local world size, beside torchrun's


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    return Size(range(1, 2), nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that runs ``python3 arguments``, which starts the processes itself."""
    return ["python3", *arguments]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options unchanged: the run starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Become ``command``, so that its signals and exit code are those of the run."""
    os.execvp(command[0], command)


def checks() -> Iterator[Check]:
    """Yield checks of this machine: none."""
    yield from ()
