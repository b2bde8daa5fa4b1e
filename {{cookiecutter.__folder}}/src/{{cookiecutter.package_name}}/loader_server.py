"""The process from which loader processes are copied imports this: all that they need.

It leaves the process group of the training, to which Ctrl-C and some launchers send their signals, and ignores these.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from torch.utils.data._utils import signal_handling

from . import batches
from .early_signals import STOP_SIGNALS, ignore_stop_signals
from .host_memory import keep_freed_memory

__all__ = ["batches"]

keep_freed_memory()
os.setpgid(0, 0)
ignore_stop_signals()
of_torch: Any = signal_handling
handle_errors = of_torch._set_worker_signal_handlers


def handle_errors_alone() -> None:
    """Let torch report a loader process that crashes, but not let SIGTERM end it while it begins."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    handle_errors()
    ignore_stop_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


of_torch._set_worker_signal_handlers = handle_errors_alone
