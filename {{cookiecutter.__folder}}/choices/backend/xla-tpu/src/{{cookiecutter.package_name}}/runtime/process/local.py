"""Start the processes of this machine without a launcher, by torch_xla."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import active_children
from types import FrameType
from typing import Any

from ..report import UsageError
from . import STOP_SIGNALS, Ranks, early_signals, end_with_parent, ignore_stop_signals

# Whether torch_xla has started this process. In any other, its functions would take the device.
_started = False


def ranks() -> Ranks | None:
    """Return the ranks that the backend itself assigns, in a process that it has started."""
    if not _started:
        return None
    import torch_xla.runtime as xr

    return Ranks(xr.global_ordinal(), xr.world_size(), xr.local_ordinal(), xr.local_device_count())


def start(worker: Any, nproc: int | None) -> int:
    """Run ``worker`` in one process for each chip; return the exit code.

    Raises:
        UsageError: if this machine does not have a TPU.
    """
    import torch_xla

    one_process = _has_one_process()
    if not one_process:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
        if early_signals:
            _end(next(iter(early_signals)), None)
    try:
        torch_xla.launch(_child, args=(worker, os.getpid()), debug_single_process=one_process)
    except SystemExit as end:
        return int(str(end.code))
    except ValueError as error:
        # It starts a pool with one process for each chip.
        if "max_workers" not in str(error):
            raise
        raise UsageError("this machine does not have a TPU. Set PJRT_DEVICE=CPU for a trial without one.", 1) from error
    return 0


def _has_one_process() -> bool:
    """Return whether the device is the CPU. It needs no process of its own, and signals reach the run."""
    return os.environ.get("PJRT_DEVICE") == "CPU"


def _end(number: int, frame: FrameType | None) -> None:
    """End this command and its processes: they train in threads, which do not see signals."""
    ignore_stop_signals()
    print("error: stopped. Start again to resume from the last checkpoint.", file=sys.stderr, flush=True)
    # The exit would wait for them.
    for child in active_children():
        child.kill()
    sys.exit(128 + number)


def _child(index: int, worker: Callable[[], int], parent: int) -> None:
    global _started
    if os.getpid() != parent:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
    _started = True
    try:
        code = worker()
    finally:
        _started = False
    if code:
        sys.exit(code)


def prefix(nproc: int | None) -> list[str]:
    """Return what starts a command in ``nproc`` processes of this machine: nothing, the command starts them itself."""
    return []
