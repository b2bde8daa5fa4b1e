"""Trainings that a command starts one after another: those of scaling, of a sweep, and of several seeds."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

import yaml

from . import distributed, early_signals, storage
from .checks import refuse_other_folders, require
from .config import EXIT_RESUMABLE, PACKAGE, Config, to_dict
from .distributed import hardware, launcher
from .errors import UsageError
from .launch import frozen, planned_size
from .supervision import LEFT_ALONE_S, Mark

TRAINING_LIMIT_S = 1800.0
# How often to look for a new evaluation, and for the end.
LOOK_S = 0.2
# What the processes of a training write, in its run directory.
OUTPUT = "output.txt"


class Start(NamedTuple):
    """How the processes of a training are started."""

    command: list[str]
    variables: dict[str, str]
    options: dict[str, object]
    """settings that belong to it"""
    limit_s: float | None
    """after which it hangs"""


class Ended(NamedTuple):
    """How a training ended."""

    code: int
    """``EXIT_RESUMABLE`` if it stopped after a checkpoint, whatever its launcher makes of that"""
    why: str
    """the sentence of one that failed"""


def started_here(run: Path, processes: int) -> Start:
    """Return how to start processes of this machine alone, whatever the launcher."""
    variables = {name: os.environ.get(name, value) for name, value in hardware.ENVIRONMENT.items()}
    return Start(distributed.local_command(processes, ["train"]), variables, {"train.run_dir": run}, TRAINING_LIMIT_S)


def started_on_nodes(run: Path, nodes: int, processes: int) -> Start:
    """Return how the project's launcher starts processes on so many nodes, and waits for them, in a queue too."""
    given = {name: value.format(run_dir=run) for name, value in (launcher.ON_NODES or {}).items()}
    variables = {**given, "NNODES": str(nodes), "NPROC_PER_NODE": str(processes // nodes)}
    options: dict[str, object] = {} if "RUN_DIR" in given else {"train.run_dir": run}
    return Start([sys.executable, "-m", PACKAGE, "launch"], variables, options, limit_s=None)


def command_of_each(here: bool) -> list[str] | None:
    """Return the command that trains once and waits for the end, without its settings; None: ``submit`` the whole.

    ``here``: in processes of this machine alone, whatever the launcher.

    Raises:
        UsageError: if the launcher cannot start a training that this process follows.
    """
    if here:
        return [sys.executable, "-m", PACKAGE, "launch", "--here"]
    if launcher.ON_NODES is None and not launcher.ELSEWHERE and launcher.size(None).nnodes[-1] > 1:
        raise UsageError(f"{launcher.NAME} does not start other nodes from this one: unset NNODES")
    return launcher.trial()


def submit(config: Config, arguments: list[str]) -> int:
    """Submit this command itself, whose trainings then start inside its jobs; return the exit code."""
    use_this_python()
    refuse_other_folders()
    require(distributed.checks(config.distributed, machine=False))
    if launcher.QUEUED:
        command, *others = arguments
        arguments = [command, *frozen(config, others)]
    return launcher.start(["env", *launcher.command(planned_size(), arguments)], Path(config.train.run_dir))


def place_of(run: str) -> tuple[str, str]:
    """Return what stands before scripts/train.sh, and what behind it, to choose the run directory.

    The settings are in a file of this machine, which is read here, or when a job is queued.
    """
    if launcher.ELSEWHERE and not launcher.QUEUED:
        return "", f" --here --train.run_dir {run}"
    return (f"RUN_DIR={run} ", "") if "RUN_DIR" in (launcher.ON_NODES or {}) else ("", f" --train.run_dir {run}")


def begin(start: Start, settings: list[str], output: int | IO[str]) -> subprocess.Popen[str]:
    """Start a training in a session of its own, so that Ctrl-C reaches this process alone; it ends when this one does."""
    use_this_python()
    return subprocess.Popen(
        [*start.command, *settings],
        env={**os.environ, **start.variables},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=early_signals.die_with_parent,  # noqa: PLW1509 - it takes no lock that a thread may hold
    )


def use_this_python() -> None:
    """Let trainings run with the Python of this process, also where its environment is not activated."""
    folder = Path(sys.executable).parent
    if Path(shutil.which("python3") or "").parent != folder:
        os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])


def reason(said: str) -> str:
    """Return why a training failed, of all that its processes said."""
    # A launcher may put before each line which process has said it.
    lines = [re.sub(r"^\[\d+\]<\w+>:", "", line) for line in said.splitlines()]
    first = next((line for line in lines if "error: " in line or line.startswith("[rank")), said[-300:])
    if first.endswith(":"):
        # Below it stands a traceback, whose last line is the error.
        below = lines[lines.index(first) + 1 :]
        first += next((f" {line}" for line in below if not line.startswith((" ", "Traceback"))), "")
    return first.removeprefix("error: ")


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect stop signals in the list that it yields, until the end of the ``with`` block."""
    received: list[int] = [*early_signals.received]

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, remember) for number in early_signals.STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def claim(run: Path) -> IO[str] | None:
    """Keep the folder of a training for this process until the file that is returned is closed; None: it is another's.

    The kernel closes it, however this process ends.
    """
    storage.open_folder(run)
    try:
        return storage.lock(run / ".trial", limit_s=0)[0]
    except UsageError:
        return None


def keep_settings(config: Config, folder: Path) -> list[str]:
    """Write the settings that all trainings in the folder share; return the options that read them."""
    file = folder / "settings.yaml"
    storage.write(file, yaml.safe_dump(to_dict(config), sort_keys=False))
    return ["--config", str(file), "--train.resume=auto"]


def train(
    command: list[str], settings: list[str], run: Path, signals: list[int], is_hopeless: Callable[[], bool]
) -> Ended:
    """Train in the folder ``run``, or resume there; stop after a checkpoint upon one of ``signals``, or if it is hopeless.

    Raises:
        UsageError: if another training still writes there, after a minute.
    """
    # The one that a killed sweep has left behind may still write its checkpoint.
    storage.lock(run / storage.LOCK, limit_s=LEFT_ALONE_S)[0].close()
    stopped = Mark(run / "stopped")
    with (run / OUTPUT).open("a+", errors="replace") as output:
        begins_at = output.tell()
        start = Start(command, {}, {}, limit_s=None)
        process = begin(start, [*settings, f"--train.run_dir={run}"], output)
        sent = 0
        try:
            while process.poll() is None:
                if sent < len(signals) or (sent == 0 and is_hopeless()):
                    sent += 1
                    # The first one every launcher hands on.
                    os.kill(process.pid, signal.SIGUSR1 if sent == 1 else signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(begins_at)
        why = reason(output.read())
    return Ended(EXIT_RESUMABLE if stopped.is_new() else process.returncode, why)
