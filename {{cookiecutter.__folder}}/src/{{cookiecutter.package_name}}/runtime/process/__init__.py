"""Processes start, meet, communicate and exit. This file: ranks, sizes and signals.

start.py        start a run; what each process does first and last
launcher.py     the command that starts a run
local.py        start processes of this machine without the launcher
supervise.py    forward signals to what was started, and return the exit code
backend.py      facts about the backend, without importing torch
exchange.py     how processes meet and communicate
hardware.py     the device of a process
collectives.py  what ranks agree on
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..report import UsageError

# Exit code of a run that stopped after a checkpoint; the same command resumes it.
EXIT_RESUMABLE = 85
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# Set for processes whose launcher takes every exit code except 0 for a failure: they exit with 0 after a stop.
SUPERVISED = "DDL_SUPERVISED"
# How long a failed process waits before it exits, so that others can report the cause.
GRACE_S = 2.0
# Signals that arrived before the run could handle them.
early_signals: set[int] = set()
# Called when the function of this process has returned or raised.
at_exit: list[Callable[[], None]] = []


class Ranks(NamedTuple):
    """The place of a process in a run."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def ranks_from(names: Sequence[str]) -> Ranks | None:
    """Read ranks from environment variables; return None if one of the first three is not set."""
    matches = [re.match(r"\d+", os.environ.get(name, "")) for name in names]
    numbers = [int(match[0]) for match in matches if match]
    if not all(matches[:3]):
        return None
    return Ranks(numbers[0], numbers[1], numbers[2], numbers[3] if matches[3] else numbers[1])


class Size(NamedTuple):
    """How many processes a run has."""

    nnodes: range
    """the possible numbers of nodes"""
    nproc_per_node: int | None
    """None: one for each device that the backend finds"""

    def world_sizes(self) -> list[int]:
        """Return the possible numbers of processes."""
        return [nnodes * (self.nproc_per_node or 1) for nnodes in self.nnodes]


def keep_early_signals() -> None:
    """Record SIGUSR1 and SIGHUP until the run can stop cleanly, instead of exiting at once.

    A signal that the parent ignores stays ignored, as under nohup.
    """
    for number in (signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: early_signals.add(number))


def ignore_stop_signals() -> None:
    """Ignore stop signals from now on."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent exits; Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@contextmanager
def catching_stop_signals() -> Iterator[list[int]]:
    """Collect stop signals in a list inside the ``with`` block, while the run can still save a checkpoint."""
    received = [*early_signals]
    remember = lambda number, frame: received.append(number)
    handlers: dict[int, Any] = {}
    # Python lets only the main thread handle signals, and some launchers train in another one.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        # Ignored under nohup.
        handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, remember)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is remember:
                signal.signal(number, handler)


def number_from_environment(name: str) -> int | None:
    """Return a positive number from the environment, or None if it is not set.

    Raises:
        UsageError: if it is not a positive number.
    """
    text = os.environ.get(name)
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*", text):
        raise UsageError(f"{name} {text} is not a positive number. Set it to 2, for example, or unset it.")
    return int(text)
