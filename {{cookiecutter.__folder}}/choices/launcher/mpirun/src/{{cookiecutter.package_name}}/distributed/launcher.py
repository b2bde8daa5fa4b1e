"""How a training is started: by mpirun, on one machine or, by ssh, on many.

NPROC_PER_NODE  processes on each node (default: 2 in a project for CPUs, else one for each device)
NNODES          nodes (default: 1); for more than one, HOSTFILE names a file of hosts, one a line
MASTER_ADDR, MASTER_PORT   where the processes meet, unless MPI connects them: the host of rank 0 (default: this
                machine, or the first of HOSTFILE) and a port that is free there (any on one node, 29500 on several)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check, free_port, number_of_nodes
from ..config import PACKAGE, Ranks, Size
from ..errors import UsageError
from ..supervision import supervise
from . import starter, transport

NAME = "mpirun"
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
    """Return the command that trains, with the variables to set before it.

    Raises:
        UsageError: if several nodes are asked for and not named.
    """
    nnodes, nproc = size.nnodes[0], size.nproc_per_node or 1
    options, exported, address, port = ["-n", str(nnodes * nproc)], ["OMP_NUM_THREADS"], "127.0.0.1", None
    open_mpi = starter.is_open_mpi()
    if os.environ.get("HOSTFILE") and not os.environ.get("NNODES"):
        raise UsageError("set NNODES to the number of nodes to train on, or unset HOSTFILE")
    if nnodes > 1:
        hosts = _hosts(os.environ.get("HOSTFILE", ""))
        address, port = hosts[0], 29500
        options += ["--hostfile", os.environ["HOSTFILE"]]
        options += ["--map-by", f"ppr:{nproc}:node"] if open_mpi else ["-ppn", str(nproc)]
        # Where programs are found, and the settings of the network, are for every node.
        exported += [name for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ]
        exported += sorted(name for name in os.environ if name.startswith(transport.EXPORTED))
    variables = []
    if transport.RENDEZVOUS:
        variables.append(f"MASTER_ADDR={os.environ.get('MASTER_ADDR') or address}")
        variables.append(f"MASTER_PORT={os.environ.get('MASTER_PORT') or port or free_port()}")
        exported += ["MASTER_ADDR", "MASTER_PORT"]
    # Others hand on the whole environment.
    if open_mpi:
        options += [word for name in exported for word in ("-x", name)]
    mpirun = ["mpirun", *options, *starter.options(nproc, nnodes)]
    return [*variables, *mpirun, "python3", "-m", PACKAGE, "train", *settings]


def _hosts(file: str) -> list[str]:
    """Return the host names in a hosts file.

    Raises:
        UsageError: if there is none.
    """
    lines = Path(file).read_text().splitlines() if Path(file).is_file() else []
    hosts = [line.split()[0].partition(":")[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not hosts:
        raise UsageError("set HOSTFILE to a file that names the hosts, one a line")
    return hosts


def trial() -> list[str] | None:
    """Return the command that trains once and waits for the end, without its settings."""
    return [sys.executable, "-m", PACKAGE, "launch"]


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` until the training in ``run_dir`` has ended; return the exit code."""
    return supervise(command, run_dir)


def ranks() -> Ranks | None:
    """Return which process this is, if mpirun started it."""
    return starter.ranks()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a training."""
    yield from starter.checks()
