"""The process from which loader processes are copied imports this: all that they need.

It leaves the process group of the training, to which Ctrl-C and some launchers send their signals, and ignores these.
"""

from __future__ import annotations

import os

from . import batches
from .early_signals import ignore_stop_signals

__all__ = ["batches"]

os.setpgid(0, 0)
ignore_stop_signals()
