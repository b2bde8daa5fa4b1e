"""How a training is started: by torchrun, on one machine or, by the same command, on each of many.

NPROC_PER_NODE  processes on each node (default: 2 in a project for CPUs, else one for each device)
NNODES          nodes (default: 1); 1:4 is elastic: any number in between, nodes may come and go
MASTER_ADDR, MASTER_PORT   rendezvous of several nodes: host name of one, and a port that is free there (29500)
MAX_RESTARTS    how often to resume after a process was lost (default: 0 on one node, else 3)
RDZV_ID, RDZV_CONF         name of the rendezvous, and more for it, such as last_call_timeout=5
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check
from ..config import PACKAGE, Ranks, Size
from ..errors import UsageError
from ..supervision import supervise
from . import starter

NAME = "torchrun"
ELSEWHERE = False  # the training runs where it is started
QUEUED = False  # it does not wait in a queue, where its settings would have to be kept
RESUME = "the same command"  # what resumes a stopped training
# no single command starts the processes of many nodes, and waits for them
ON_NODES: dict[str, str] | None = None


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes will train together.

    Raises:
        UsageError: if NNODES is not a number, or two of them.
    """
    nnodes = os.environ.get("NNODES") or "1"
    numbers = re.fullmatch(r"([1-9]\d*)(?::(\d+))?", nnodes)
    counts = range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1) if numbers else range(0)
    if not counts:
        raise UsageError(f"NNODES is a number of nodes, such as 2, or 1:4 for any in between, not {nnodes}")
    return Size(counts, nproc_per_node)


def command(size: Size, settings: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that trains, with the variables to set before it.

    Raises:
        UsageError: if several nodes are not told where to meet.
    """
    variables = []
    fewest, most = size.nnodes[0], size.nnodes[-1]
    restarts, port = os.environ.get("MAX_RESTARTS") or ("0" if most == 1 else "3"), os.environ.get("MASTER_PORT")
    if most > 1:
        # A store that every node connects to anew survives the loss of one of them.
        variables.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    if most == 1 and not port:
        rendezvous = ["--standalone"]
    else:
        master = "localhost" if most == 1 else os.environ.get("MASTER_ADDR")
        if not master:
            raise UsageError("set MASTER_ADDR to the host name of one node, the same on each of them")
        rendezvous = [
            f"--nnodes={fewest if fewest == most else f'{fewest}:{most}'}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={master}:{port or 29500}",
            f"--rdzv-id={os.environ.get('RDZV_ID') or PACKAGE}",
            f"--rdzv-conf={os.environ.get('RDZV_CONF', '')}",
        ]
    # The torchrun of the PATH may be that of another environment, in which this package is not: of one below this one, say.
    torchrun = ["python3", "-m", "torch.distributed.run"]
    torchrun += [*rendezvous, f"--max-restarts={restarts}", f"--nproc-per-node={size.nproc_per_node}"]
    return [*variables, *torchrun, "-m", PACKAGE, "train", *settings]


def trial() -> list[str] | None:
    """Return the command that trains once and waits for the end, without its settings."""
    return [sys.executable, "-m", PACKAGE, "launch"]


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` until the training in ``run_dir`` has ended; return the exit code."""
    return supervise(command, run_dir, restarts="--max-restarts=0" not in command)


def ranks() -> Ranks | None:
    """Return which process this is, if torchrun started it."""
    return starter.ranks()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a training."""
    yield from starter.checks()
