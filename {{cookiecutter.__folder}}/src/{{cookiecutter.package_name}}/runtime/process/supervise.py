"""Supervise a launcher: forward stop signals, and return the exit code of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from .. import state
from . import EXIT_RESUMABLE, STOP_SIGNALS, SUPERVISED, early_signals, end_with_parent, ignore_stop_signals

PACKAGE = __name__.partition(".runtime.")[0]
POLL_S = 0.05
# How long to wait for processes whose launcher was killed.
ORPHANS_S = 60.0


def supervise(command: list[str], run_dir: Path, restarts: bool = False) -> int:
    """Run a launcher's command; return its exit code, or ``EXIT_RESUMABLE`` if the run stopped after a checkpoint.

    A launcher may change the exit codes of its processes and give them no time for a checkpoint. So the first stop signal
    goes to rank 0, which stops all ranks, and the second to the launcher. If rank 0 is on another machine or has not
    started, the launcher gets the first one too.

    Args:
        restarts: whether the launcher restarts processes that exit.
    """
    signals: list[int] = [*early_signals]

    def remember(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in STOP_SIGNALS:
        # Ignored under nohup.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, remember)
    marks = {name: written_at(run_dir / name) for name in ("log.txt", "stopped", "summary.json")}
    is_new: Callable[[str], bool] = lambda name: written_at(run_dir / name) > marks[name]
    # In a session of its own, so that Ctrl-C reaches only this process.
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=None if restarts else {**os.environ, SUPERVISED: "1"},
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock that a thread may hold
    )
    forwarded = 0
    while running.poll() is None:
        if forwarded < len(signals):
            forwarded += 1
            rank_0 = state.lock_holder(run_dir / state.LOCK) if forwarded == 1 else None
            with suppress(ProcessLookupError):
                # SIGUSR1 is handled from the start of a process.
                os.kill(rank_0 or running.pid, signal.SIGUSR1 if rank_0 else signal.SIGTERM)
        elif restarts and len(signals) == 1 and is_new("stopped"):
            # Keep the launcher from restarting what has stopped.
            signals.append(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            running.wait(POLL_S)
    # If the launcher was killed, its processes may still write a checkpoint.
    deadline = time.monotonic() + ORPHANS_S
    while running.returncode < 0 and state.lock_holder(run_dir / state.LOCK) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    # While Python exits, a signal would change the exit code.
    ignore_stop_signals()
    code = running.returncode
    if is_new("stopped"):
        return EXIT_RESUMABLE
    if signals and code and not is_new("log.txt"):
        print("error: stopped before a checkpoint was saved. Start again.", file=sys.stderr)
        return 128 + signals[0]
    if signals and code == 0 and not is_new("summary.json"):
        # Some launchers report success when a signal has ended their processes.
        return 1
    return code if code >= 0 else 128 - code


def start_again(launcher: list[str], run_dir: str, arguments: list[str]) -> int:
    """Run this process's own command in the processes that ``launcher`` starts on this machine; return the exit code.

    Args:
        launcher: what precedes the command.
        arguments: the name of the command and its options.
    """
    # "-m PACKAGE", or a program that calls its main.
    own = len(sys.orig_argv) - len(arguments)
    program = sys.orig_argv[1:own] if sys.orig_argv[own:] == arguments else ["-m", PACKAGE]
    command = [*launcher, sys.executable, *program, *arguments]
    if arguments[0] == "train":
        return supervise(command, Path(run_dir))
    # Other commands do not save checkpoints.
    os.execvp(command[0], command)


def written_at(file: Path) -> int:
    """Return when a file was last written, in nanoseconds; 0 if it does not exist."""
    return file.stat().st_mtime_ns if file.exists() else 0
