"""Stand over a launcher: let the training stop in order on a signal, and tell by the exit code how it ended.

A launcher makes its own exit code of those of its processes, and may leave them no time for a checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from . import early_signals, storage
from .config import EXIT_RESUMABLE, SUPERVISED

POLL_S = 0.05
# How long to wait for processes that the launcher has left alone.
LEFT_ALONE_S = 60.0


def supervise(command: list[str], run_dir: Path, restarts: bool = False) -> int:
    """Run the launcher's command; return its exit code, or ``EXIT_RESUMABLE`` if the training stopped and can resume.

    The first signal goes to rank 0, which agrees with all others to save a checkpoint and end; the launcher itself gets
    the next one, or the first where rank 0 is not on this machine, or has not begun. ``restarts`` is whether the launcher
    starts anew what has ended; one that does not is told of no failure where there is none.
    """
    signals: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in early_signals.STOP_SIGNALS:
        signal.signal(number, remember)
    begun, stopped, finished = (Mark(run_dir / name) for name in ("log.txt", "stopped", "summary.json"))
    # In a session of its own, so that Ctrl-C reaches this process alone. It ends when this process is killed.
    launcher = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=None if restarts else {**os.environ, SUPERVISED: "1"},
        preexec_fn=early_signals.die_with_parent,  # noqa: PLW1509 - it takes no lock that a thread may hold
    )
    passed_on = 0
    while launcher.poll() is None:
        if passed_on < len(signals):
            passed_on += 1
            rank_0 = storage.holder(run_dir / storage.LOCK) if passed_on == 1 else None
            with suppress(ProcessLookupError):
                # Unlike others, this one is caught from the start.
                os.kill(rank_0 or launcher.pid, signal.SIGUSR1 if rank_0 else signal.SIGTERM)
        elif restarts and len(signals) == 1 and stopped.is_new():
            # As if a second signal had come.
            signals.append(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(POLL_S)
    # Where the launcher was killed, its processes may still be saving a checkpoint.
    deadline = time.monotonic() + LEFT_ALONE_S
    while launcher.returncode < 0 and storage.holder(run_dir / storage.LOCK) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    # Python itself would let them end this process while it exits.
    early_signals.ignore_stop_signals()
    if stopped.is_new():
        return EXIT_RESUMABLE
    code = launcher.returncode
    if signals and code and not begun.is_new():
        # There was no training yet that could have stopped in order.
        print("error: stopped before a checkpoint was saved: start again", file=sys.stderr)
        return 128 + signals[0]
    if code == 0 and signals and not finished.is_new():
        # Some take their processes that a signal has ended for done.
        return 1
    return code if code >= 0 else 128 - code


class Mark:
    """A file that the training writes at its end; a former training may have left one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.before = self._written()

    def is_new(self) -> bool:
        """Tell whether the file was written since this object was made."""
        return self._written() not in (None, self.before)

    def _written(self) -> int | None:
        """Return when the file was last written, in nanoseconds, or None if it is not there."""
        try:
            return self.file.stat().st_mtime_ns
        except OSError:
            return None
