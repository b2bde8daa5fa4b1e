"""What has to be right before a training can start, as far as it can be told without importing torch."""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import UsageError


@dataclass(frozen=True)
class Check:
    """One thing that has to be right before a training can start."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    exit_code: int = 1


def require(checks: Iterable[Check]) -> None:
    """Raise UsageError with the first of ``checks`` that fails, in one sentence."""
    for check in checks:
        if not check.ok:
            raise UsageError(f"{check.found}: {check.fix}", check.exit_code)


def processes(numbers: Sequence[int]) -> str:
    """Return "1 process", "2 processes", or "2, 4 and 6 processes"."""
    *some, last = numbers
    return f"{', '.join(map(str, some))}{' and ' if some else ''}{last} process{'es' if last > 1 else ''}"


def batch_check(batch_size: int, world_sizes: Sequence[int], accumulation_steps: int = 1) -> Check:
    """Tell whether the global batch divides for all of ``world_sizes``; the fix is the two nearest sizes that do."""
    parts = math.lcm(*world_sizes) * accumulation_steps
    among = processes(world_sizes)
    if batch_size % parts == 0:
        return Check("global batch", True, f"{batch_size} samples over {among}")
    lower = batch_size // parts * parts
    choices = f"{lower} or {lower + parts}" if lower else str(parts)
    among += f" x {accumulation_steps} accumulation steps" if accumulation_steps > 1 else ""
    found = f"data.batch_size {batch_size} is not divisible by {among}"
    return Check("global batch", False, found, f"choose {choices}", exit_code=2)


def run_dir_check(run_dir: Path) -> Check:
    """Tell whether the run directory, or the folder in which it will be made, can be written."""
    existing = next(folder for folder in (run_dir, *run_dir.absolute().parents) if os.path.exists(folder))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check("run directory", True, f"{run_dir} can be written")
    except OSError as error:
        found = f"{run_dir} cannot be written ({existing}: {error.strerror})"
        return Check("run directory", False, found, "choose another train.run_dir")


def command_check(name: str, command: str, fix: str) -> Check:
    """Tell whether ``command`` is on the PATH."""
    path = shutil.which(command)
    return Check(name, path is not None, path or f"{command} is not on the PATH", fix)


def port_check(port: str) -> Check:
    """Tell whether the processes can meet at MASTER_PORT ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            return Check("port", False, f"MASTER_PORT {port}: {reason}", "set it to a free port, or unset it")
    return Check("port", True, f"MASTER_PORT {port} is free")


def local_port_check() -> Iterator[Check]:
    """Yield whether MASTER_PORT is free, if it is set and this machine is where the processes meet."""
    port, master = os.environ.get("MASTER_PORT"), os.environ.get("MASTER_ADDR") or "localhost"
    if port and master in ("localhost", "127.0.0.1"):
        yield port_check(port)


def refuse_foreign_launchers(launcher: str) -> None:
    """Refuse to be one of several processes of a launcher that this project does not know: each would train alone.

    Raises:
        UsageError: always, if the environment tells of another one than ``launcher``.
    """
    names = [name for name in os.environ if re.fullmatch(r"\w+(?<!NODE)_RANK(ID)?", name)]
    names += ["SLURM_PROCID"] if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 else []
    if names:
        raise UsageError(
            f"{names[0]} shows that a launcher other than {launcher} started this process, so that each of its "
            "processes would train alone: start them with scripts/train.sh"
        )


def number_in_environment(name: str, meaning: str) -> int | None:
    """Return a number from the environment, or None if it is not set, or empty.

    Raises:
        UsageError: if it is not a number.
    """
    text = os.environ.get(name)
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*", text):
        raise UsageError(f"{name} is {meaning}, such as 2, not {text}")
    return int(text)


def number_of_nodes() -> int:
    """Return NNODES, or 1.

    Raises:
        UsageError: if it is not a number.
    """
    return number_in_environment("NNODES", "a number of nodes") or 1


def project_folder() -> Path:
    """Return the folder that holds scripts/: this one, or that of the package's source."""
    return Path() if Path("scripts").is_dir() else Path(__file__).parents[2]


def refuse_other_folders() -> None:
    """Refuse to let a cluster start, from another folder, what stands in the project's scripts/.

    Raises:
        UsageError: in one.
    """
    if not Path("scripts").is_dir():
        raise UsageError(f"start this in the project's folder: cd {project_folder()}")


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
