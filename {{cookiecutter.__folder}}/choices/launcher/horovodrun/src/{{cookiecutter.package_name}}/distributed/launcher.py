"""How a training is started: by horovodrun, on one machine or, by ssh, on many.

NPROC_PER_NODE  processes on each node (default: 2 in a project for CPUs, else one for each device)
NNODES          nodes (default: 1): the first of HOSTS, such as a,b
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check, number_of_nodes
from ..config import PACKAGE, Ranks, Size
from ..errors import UsageError
from ..supervision import supervise
from . import starter

NAME = "horovodrun"
ELSEWHERE = False  # the training runs where it is started
QUEUED = False  # it does not wait in a queue, where its settings would have to be kept
RESUME = "the same command"  # what resumes a stopped training
# variables with which one command starts the processes of many nodes, and waits for them
ON_NODES: dict[str, str] | None = {}


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes will train together.

    Raises:
        UsageError: if NNODES is not a number.
    """
    return Size.fixed(number_of_nodes(), nproc_per_node)


def command(size: Size, settings: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that trains.

    Raises:
        UsageError: if more nodes are asked for than are named.
    """
    nnodes, nproc = size.nnodes[0], size.nproc_per_node or 1
    options, given = ["-np", str(nnodes * nproc), "--gloo"], os.environ.get("HOSTS") or ""
    hosts = [host.partition(":")[0].strip() for host in given.split(",") if host.strip()]
    if not os.environ.get("NNODES") and len(hosts) > 1:
        raise UsageError(f"set NNODES={len(hosts)} to train on all of HOSTS {given}, or unset HOSTS")
    if nnodes > 1:
        if len(hosts) < nnodes:
            names = ",".join("abcdefgh"[:nnodes])
            raise UsageError(f"NNODES is {nnodes}, and HOSTS names {len(hosts)}: name as many hosts, such as {names}")
        # It starts a process for every number here, however few -np asks for.
        options += ["-H", ",".join(f"{host}:{nproc}" for host in hosts[:nnodes])]
        # It would choose one itself, and tell the processes of that.
        if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
            options += ["--network-interfaces", interface]
    return ["horovodrun", *options, "python3", "-m", PACKAGE, "train", *settings]


def trial() -> list[str] | None:
    """Return the command that trains once and waits for the end, without its settings."""
    return [sys.executable, "-m", PACKAGE, "launch"]


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` until the training in ``run_dir`` has ended; return the exit code."""
    return supervise(command, run_dir)


def ranks() -> Ranks | None:
    """Return which process this is, if horovodrun started it."""
    return starter.ranks()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a training."""
    yield from starter.checks()
