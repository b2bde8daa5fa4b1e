"""How the processes of one machine are started: by horovodrun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from ..checks import Check, command_check
from ..config import PACKAGE, DistributedConfig, Ranks
from . import transport

# The kernel would send the signal when the thread of horovodrun that started the process ends, which is too early.
DIES_WITH_PARENT = False
STARTS_IN_TRAIN = False  # ``train`` runs in processes that are started before
SERVES_RENDEZVOUS = True  # for the processes that it starts


def ranks() -> Ranks | None:
    """Return which process this is, if horovodrun started it."""
    return Ranks.from_environment("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments`` in ``nproc_per_node`` processes of this machine."""
    return ["horovodrun", "-np", str(nproc_per_node), "--gloo", sys.executable, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in this process, one of those that horovodrun has started; return its exit code."""
    return worker()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes."""
    yield command_check("launcher", "horovodrun", transport.FIX)
