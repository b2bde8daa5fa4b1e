"""How the processes of one machine are started: by a plain Python command, with torch_xla's launch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from types import FrameType

from .. import early_signals
from ..checks import Check
from ..config import PACKAGE, DistributedConfig, Ranks
from ..errors import UsageError

DIES_WITH_PARENT = False  # each of its processes sees to that itself
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

    one_process = _takes_one_process()
    if not one_process:
        for number in early_signals.STOP_SIGNALS:
            signal.signal(number, _end)
        if early_signals.received:
            _end(signal.SIGUSR1, None)
    try:
        torch_xla.launch(_child, args=(worker, os.getpid()), debug_single_process=one_process)
    except SystemExit as end:
        return int(str(end.code))
    except ValueError as error:
        # It starts a pool of as many processes as it finds chips.
        if "max_workers" not in str(error):
            raise
        said = "there is no TPU chip on this machine: for a trial without one, set PJRT_DEVICE=CPU"
        raise UsageError(said, 1) from error
    return 0


def _takes_one_process() -> bool:
    """Tell whether there is one device, the CPU: it needs no process of its own, and signals reach the training."""
    return os.environ.get("PJRT_DEVICE") == "CPU"


def _end(number: int, frame: FrameType | None) -> None:
    """End this command and its processes, whose trainings are threads and see no signal."""
    early_signals.ignore_stop_signals()
    print("error: stopped: start again to resume from the last checkpoint", file=sys.stderr, flush=True)
    # Else the way out waits for them.
    for child in active_children():
        child.kill()
    sys.exit(128 + number)


def _child(index: int, worker: Callable[[], int], parent: int) -> None:
    global _in_child
    if os.getpid() != parent:
        early_signals.die_with_parent()
        # It may have died before.
        if os.getppid() != parent:
            os._exit(1)
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
