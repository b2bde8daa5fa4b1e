"""Signals that may come before the training looks for them: while a process still starts."""

from __future__ import annotations

import ctypes
import signal
import sys

received: set[int] = set()


def remember() -> None:
    """Keep SIGUSR1, which a scheduler may send too early, from ending this process.

    The training stops at its first log point then.
    """
    signal.signal(signal.SIGUSR1, lambda number, frame: received.add(number))


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent, a launcher, dies, so that it is not left behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
