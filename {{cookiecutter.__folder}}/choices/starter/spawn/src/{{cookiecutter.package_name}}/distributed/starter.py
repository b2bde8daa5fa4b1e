"""How the processes of one machine are started: by a plain Python command, with torch's spawn."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from .. import early_signals
from ..checks import Check, free_port, local_port_check
from ..config import EXIT_RESUMABLE, PACKAGE, DistributedConfig, Ranks
from . import hardware

DIES_WITH_PARENT = False  # each of its processes sees to that itself
STARTS_IN_TRAIN = True  # ``train`` itself starts the processes
SERVES_RENDEZVOUS = False  # one of the processes does


def ranks() -> Ranks | None:
    """Return which process this is, if ``run`` started it."""
    return Ranks.from_environment("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments``, which starts ``nproc_per_node`` processes itself."""
    return [sys.executable, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in as many processes as the configuration says, or one for each device; return the exit code."""
    from torch.multiprocessing import get_context
    from torch.multiprocessing.spawn import ProcessExitedException, spawn

    nproc = config.nproc_per_node or hardware.default_nproc_per_node() or 1
    if ranks() or nproc == 1:
        return worker()
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc))
    # Torch takes a process that Ctrl-C has interrupted for one that is done: each tells that it really is.
    done, stopped = (get_context("spawn").Value("i", 0) for _ in range(2))
    # When one ends early, spawn ends the others and tells about each of them.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    # They inherit this: of Ctrl-C, which a terminal sends to them too, they hear from this process alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = spawn(_child, (worker, done, stopped, os.getpid()), nprocs=nproc, join=False)

    signals: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # The first as the one that a process keeps from its start on, until it can stop in order; others end it, if it cannot.
        passed_on = signal.SIGTERM if signals else signal.SIGUSR1
        signals.append(number)
        for child in children.processes:
            if child.is_alive() and child.pid:
                # Also when this interrupts ``join`` between waiting for it and knowing that it has ended.
                with suppress(ProcessLookupError):
                    os.kill(child.pid, passed_on)

    for number in early_signals.STOP_SIGNALS:
        signal.signal(number, pass_on)
    if early_signals.received:
        # It came before there was anyone to pass it on to.
        pass_on(signal.SIGUSR1, None)
    try:
        while not children.join():
            pass
    except ProcessExitedException as error:
        if -error.exit_code in (signal.SIGUSR1, signal.SIGTERM, *signals) and signals:
            return _stopped_too_early(signals)
        if error.exit_code < 0:
            said = f"rank {error.error_index} was ended by {signal.Signals(-error.exit_code).name}"
            print(f"error: {said}: start again to resume", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else 1
    finally:
        # Python itself would let them end this process while it exits.
        early_signals.ignore_stop_signals()
    if done.value < nproc:
        return _stopped_too_early(signals or [signal.SIGINT])
    return EXIT_RESUMABLE if stopped.value else 0


def _stopped_too_early(signals: list[int]) -> int:
    """Say that the processes could not yet stop in order; return the exit code of a command that the first one has ended."""
    print("error: stopped before a checkpoint was saved: start again", file=sys.stderr)
    return 128 + signals[0]


def _child(local_rank: int, worker: Callable[[], int], done: Any, stopped: Any, parent: int) -> None:
    # By another signal than torch asks for, which is that of Ctrl-C.
    early_signals.die_with_parent()
    # It may have died before.
    if os.getppid() != parent:
        sys.exit(1)
    early_signals.remember()
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    code = worker()
    # Python takes handlers away while it exits: a signal passed on then would make a failure of a training that is done.
    early_signals.ignore_stop_signals()
    with done.get_lock():
        done.value += 1
    if code == EXIT_RESUMABLE:
        stopped.value = 1
    elif code:
        sys.exit(code)


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes."""
    yield from local_port_check()
