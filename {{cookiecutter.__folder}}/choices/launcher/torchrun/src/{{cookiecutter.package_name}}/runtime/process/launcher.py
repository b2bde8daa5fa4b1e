"""Start a run by torchrun, on one machine or, by the same command, on each of many.

NPROC_PER_NODE  processes on each node (default: 2 on CPUs, else one for each device)
NNODES          nodes (default: 1); 1:4 is elastic: any number in between, nodes may come and go
MASTER_ADDR, MASTER_PORT   rendezvous of several nodes: the host name of one, and a free port there (29500)
MAX_RESTARTS    how often to resume after a process was lost (default: 0 on one node, else 3)
RDZV_ID, RDZV_CONF         name of the rendezvous, and options such as last_call_timeout=5
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check, UsageError
from . import Size
from .supervise import supervise

NAME = "torchrun"
ELSEWHERE = False  # whether runs start on other machines
RESUME = "the same command"  # what resumes a stopped run
ENDS_WITH_LAUNCHER = True  # whether the kernel ends a process with its parent
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # of rank, world size, local rank, local world size, beside torchrun's


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    nnodes = os.environ.get("NNODES") or "1"
    numbers = re.fullmatch(r"([1-9]\d*)(?::(\d+))?", nnodes)
    counts = range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1) if numbers else range(0)
    if not counts:
        raise UsageError(f"NNODES {nnodes} is not a number of nodes. Use 2, or 1:4 for any number in between.")
    return Size(counts, nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that runs ``python3 arguments`` in every process."""
    fewest, most = size.nnodes[0], size.nnodes[-1]
    restarts, port = os.environ.get("MAX_RESTARTS") or ("0" if most == 1 else "3"), os.environ.get("MASTER_PORT")
    if most == 1 and not port:
        rendezvous = ["--standalone"]
    else:
        master = "localhost" if most == 1 else os.environ.get("MASTER_ADDR")
        if not master:
            raise UsageError("MASTER_ADDR is not set. Set it to the host name of one node, the same on each of them.")
        rendezvous = [
            f"--nnodes={fewest if fewest == most else f'{fewest}:{most}'}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={master}:{port or 29500}",
            f"--rdzv-id={os.environ.get('RDZV_ID') or arguments[1]}",
            f"--rdzv-conf={os.environ.get('RDZV_CONF', '')}",
        ]
    torchrun = ["python3", "-m", f"{__package__}.local", *rendezvous, f"--max-restarts={restarts}"]
    return [*torchrun, f"--nproc-per-node={size.nproc_per_node}", *arguments]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options unchanged: the run starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` to its end; return the exit code."""
    return supervise(command, run_dir, restarts="--max-restarts=0" not in command)


def checks() -> Iterator[Check]:
    """Yield checks of this machine: none."""
    yield from ()
