"""How the processes of one machine are started: by a plain Python command, with Horovod's run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from ..checks import Check
from ..config import PACKAGE, DistributedConfig, Ranks
from . import hardware

DIES_WITH_PARENT = False  # Horovod ends what it has started
STARTS_IN_TRAIN = True  # ``train`` itself starts the processes
SERVES_RENDEZVOUS = True  # Horovod does, for the processes that it starts


def ranks() -> Ranks | None:
    """Return which process this is, if ``run`` started it."""
    return Ranks.from_environment("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments``, which starts ``nproc_per_node`` processes itself."""
    return [sys.executable, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in as many processes as the configuration says, or one for each device; return the exit code."""
    nproc = config.nproc_per_node or hardware.default_nproc_per_node() or 1
    if ranks() or nproc == 1:
        return worker()
    import horovod

    codes: list[int] = horovod.run(worker, np=nproc, use_gloo=True)
    return max(codes)


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes: nothing more."""
    yield from ()
