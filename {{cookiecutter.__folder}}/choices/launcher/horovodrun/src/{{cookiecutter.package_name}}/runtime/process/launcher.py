"""Start a run by horovodrun, on one machine or, by ssh, on many.

NPROC_PER_NODE  processes on each node (default: 2 on CPUs, else one for each device)
NNODES          nodes (default: 1): the first of HOSTS, such as a,b
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check, UsageError
from . import Size, backend, number_from_environment
from .supervise import supervise

NAME = "horovodrun"
ELSEWHERE = False  # whether runs start on other machines
RESUME = "the same command"  # what resumes a stopped run
# Whether the kernel ends a process with its parent. That of horovodrun is a thread, which exits at once.
ENDS_WITH_LAUNCHER = "HOROVOD_RANK" not in os.environ
# Of rank, world size, local rank, local world size, beside torchrun's.
RANK_VARIABLES = (("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),)


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    nnodes = number_from_environment("NNODES") or 1
    return Size(range(nnodes, nnodes + 1), nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that runs ``python3 arguments`` in every process."""
    nnodes, nproc = size.nnodes[0], size.nproc_per_node or 1
    options, names = ["-np", str(nnodes * nproc), "--gloo"], os.environ.get("HOSTS") or ""
    hosts = [host.partition(":")[0].strip() for host in names.split(",") if host.strip()]
    if not os.environ.get("NNODES") and len(hosts) > 1:
        raise UsageError(f"HOSTS is {names}, but NNODES is not set. Set NNODES={len(hosts)}, or unset HOSTS.")
    if nnodes > 1:
        if len(hosts) < nnodes:
            example = ",".join("abcdefgh"[:nnodes])
            raise UsageError(f"NNODES is {nnodes}, but HOSTS is {names!r}. Name {nnodes} hosts, such as {example}.")
        # horovodrun starts a process for every number here, however few -np requests.
        options += ["-H", ",".join(f"{host}:{nproc}" for host in hosts[:nnodes])]
        # Otherwise it would overwrite the variable with an interface of its choice.
        if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
            options += ["--network-interfaces", interface]
    return ["horovodrun", *options, "python3", *arguments]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options unchanged: the run starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` to its end; return the exit code."""
    return supervise(command, run_dir)


def checks() -> Iterator[Check]:
    """Yield a check that horovodrun is installed."""
    path = shutil.which("horovodrun")
    yield Check("launcher", path is not None, path or "horovodrun is not on the PATH", backend.FIX)
