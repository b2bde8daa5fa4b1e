"""Start processes of this machine by torch_xla."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import active_children
from types import FrameType
from typing import Any

from ..report import UsageError
from . import STOP_SIGNALS, early_signals, end_with_parent, ignore_stop_signals


def start(worker: Any, nproc: int | None, arguments: list[str]) -> int:
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
    """Return True on the CPU device: this process trains itself, and signals reach it."""
    return os.environ.get("PJRT_DEVICE") == "CPU"


def _end(number: int, frame: FrameType | None) -> None:
    """End this command and its processes, which train in threads and do not handle signals."""
    ignore_stop_signals()
    print("error: stopped. Start again to resume from the last checkpoint.", file=sys.stderr, flush=True)
    # The exit would wait for them.
    for child in active_children():
        child.kill()
    sys.exit(128 + number)


def _child(index: int, worker: Callable[[], int], parent: int) -> None:
    import torch_xla.runtime as xr

    if os.getpid() != parent:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
    ranks = {"RANK": xr.global_ordinal(), "WORLD_SIZE": xr.world_size()}
    ranks |= {"LOCAL_RANK": xr.local_ordinal(), "LOCAL_WORLD_SIZE": xr.local_device_count()}
    os.environ.update({name: str(number) for name, number in ranks.items()})
    if code := worker():
        sys.exit(code)
