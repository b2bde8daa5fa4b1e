"""Start processes of this machine by torch's spawn."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from . import (
    EXIT_RESUMABLE,
    STOP_SIGNALS,
    early_signals,
    end_with_parent,
    ignore_stop_signals,
    keep_early_signals,
)


def free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(worker: Any, nproc: int | None, arguments: list[str]) -> int:
    """Run ``worker`` in ``nproc`` processes; return the exit code."""
    from torch.multiprocessing import get_context
    from torch.multiprocessing.spawn import ProcessExitedException, spawn

    port = os.environ.get("MASTER_PORT") or str(free_port())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc))
    # torch takes a process that Ctrl-C interrupted for finished, so each confirms that it has finished.
    done, stopped = (get_context("spawn").Value("i", 0) for _ in range(2))
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    # The children inherit this: they get Ctrl-C from this process, not from the terminal too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = spawn(_child, (worker, done, stopped, os.getpid()), nprocs=nproc or 1, join=False)
    signals: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        # The first as one that processes handle from their start; the second ends them.
        forwarded = signal.SIGTERM if signals else signal.SIGUSR1
        signals.append(number)
        for child in children.processes:
            if child.is_alive() and child.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, forwarded)

    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    if early_signals:
        forward(next(iter(early_signals)), None)
    try:
        while not children.join():
            pass
    except ProcessExitedException as error:
        if signals and -error.exit_code in (signal.SIGUSR1, signal.SIGTERM, *signals):
            return _stopped_too_early(signals)
        if error.exit_code < 0:
            name = signal.Signals(-error.exit_code).name
            print(f"error: rank {error.error_index} was killed by {name}. Start again to resume.", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else 1
    finally:
        # While Python exits, a signal would change the exit code.
        ignore_stop_signals()
    if done.value < (nproc or 1):
        return _stopped_too_early(signals or [signal.SIGINT])
    return EXIT_RESUMABLE if stopped.value else 0


def _stopped_too_early(signals: list[int]) -> int:
    """Report that no checkpoint was saved; return the exit code of a command that the first signal ended."""
    print("error: stopped before a checkpoint was saved. Start again.", file=sys.stderr)
    return 128 + signals[0]


def _child(local_rank: int, worker: Callable[[], int], done: Any, stopped: Any, parent: int) -> None:
    # torch would send SIGINT.
    end_with_parent()
    if os.getppid() != parent:
        sys.exit(1)
    keep_early_signals()
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    code = worker()
    # A signal while Python exits would turn a finished run into a failure.
    ignore_stop_signals()
    with done.get_lock():
        done.value += 1
    if code == EXIT_RESUMABLE:
        stopped.value = 1
    elif code:
        sys.exit(code)
