"""How the processes of one machine are started: by a plain Python command, with torch_xla's launch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from ..checks import Check
from ..config import PACKAGE, DistributedConfig, Ranks

DIES_WITH_PARENT = False  # torch_xla ends what it has started
STARTS_IN_TRAIN = True  # ``train`` itself starts the processes
SERVES_RENDEZVOUS = True  # torch_xla does, for the processes that it starts

# torch_xla may be asked for ranks only in a process that it has started: anywhere else, asking takes the device.
_in_child = False


def ranks() -> Ranks | None:
    """Return which process this is, if ``run`` started it."""
    if not _in_child:
        return None
    import torch_xla.runtime as xr

    return Ranks(xr.global_ordinal(), xr.world_size(), xr.local_ordinal(), xr.local_device_count())


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments``; torch_xla starts one process for each chip."""
    return [sys.executable, "-m", PACKAGE, *arguments]


def run(worker: Callable[[], int], config: DistributedConfig) -> int:
    """Run ``worker`` in one process for each chip; return the exit code."""
    import torch_xla

    # The CPU is one device: it needs no process of its own, and signals reach the training.
    one_process = os.environ.get("PJRT_DEVICE") == "CPU"
    try:
        torch_xla.launch(_child, args=(worker,), debug_single_process=one_process)
    except SystemExit as end:
        return int(str(end.code))
    return 0


def _child(index: int, worker: Callable[[], int]) -> None:
    global _in_child
    _in_child = True
    try:
        code = worker()
    finally:
        _in_child = False
    if code:
        sys.exit(code)


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start processes: nothing more."""
    yield from ()
