"""How the processes of one machine are started: by torchrun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from ..checks import Check, local_port_check
from ..config import PACKAGE, DistributedConfig, Ranks

DIES_WITH_PARENT = True  # a process asks the kernel for that
STARTS_IN_TRAIN = False  # ``train`` runs in processes that are started before
SERVES_RENDEZVOUS = True  # at MASTER_ADDR and MASTER_PORT, for the processes that it starts


def ranks() -> Ranks | None:
    """Return which process this is, if torchrun started it."""
    return Ranks.from_environment("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments`` in ``nproc_per_node`` processes of this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc_per_node}"]
    return [*torchrun, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in this process, one of those that torchrun has started; return its exit code."""
    return worker()


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes."""
    yield from local_port_check()
