"""Signals that come where the training does not look for them: while a process starts, and in its loader processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

# Upon these a training saves a checkpoint and ends.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
received: set[int] = set()


def remember() -> None:
    """Keep SIGUSR1, which a scheduler may send too early, from ending this process.

    The training stops at its first log point then.
    """
    signal.signal(signal.SIGUSR1, lambda number, frame: received.add(number))


def forget() -> None:
    """Let SIGUSR1 end this process, as it has nothing to save; at once, if it has come already."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), signal.SIGUSR1)


def ignore_stop_signals() -> None:
    """Let a process that serves the training live on: the training still has to write a checkpoint, and then ends it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent, a launcher, dies, so that it is not left behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
