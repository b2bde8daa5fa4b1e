"""The signal that may come before the training looks for it: a scheduler may send it too early."""

from __future__ import annotations

import signal

received: set[int] = set()


def remember() -> None:
    """Keep SIGUSR1 from ending a process that is still starting; the training stops at its first log point then."""
    signal.signal(signal.SIGUSR1, lambda number, frame: received.add(number))
