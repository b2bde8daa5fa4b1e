"""Start processes of this machine without the launcher of the project: by mpirun, which MPI requires."""

from __future__ import annotations

import os
import shutil
from typing import Any

from ..report import UsageError
from . import launcher
from .supervise import start_again


def start(worker: Any, nproc: int | None, arguments: list[str]) -> int:
    """Run the command ``arguments`` again, in ``nproc`` processes; return the exit code.

    Raises:
        UsageError: if mpirun is not installed.
    """
    if not shutil.which("mpirun"):
        raise UsageError("mpirun is not on the PATH, and MPI requires it. Install Open MPI, or load its module.", 1)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = getattr(launcher, "mpi_options", lambda: ["--oversubscribe", *root])
    return start_again(["mpirun", *options(), "-n", str(nproc)], worker.config.train.run_dir, arguments)
