"""Start a run by torchrun at a low priority, on this machine.

NPROC_PER_NODE  processes (default: 2, or one for each device)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check
from . import Size

NAME = "nice"
ELSEWHERE = False  # whether runs start on other machines
RESUME = "the same command"  # what resumes a stopped run
ENDS_WITH_LAUNCHER = True  # whether a process asks the kernel to end it with its parent
RANK_VARIABLES: tuple[
    tuple[str, ...], ...
] = ()  # of rank, world size, local rank, local world size, beside torchrun's


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    return Size(range(1, 2), nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that runs ``python3 arguments`` in every process."""
    return ["nice", "torchrun", "--standalone", f"--nproc-per-node={size.nproc_per_node}", *arguments]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options of a run that may start later: as they are, it starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Become ``command``, so that its signals and exit code are those of the run."""
    os.execvp(command[0], command)


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a run."""
    yield Check("priority", shutil.which("nice") is not None, "nice", "install coreutils")
