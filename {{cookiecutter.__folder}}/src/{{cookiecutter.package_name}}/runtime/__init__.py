"""The runtime: everything that is the same in every project. Import it through these names alone.

An update of the template replaces this folder. It imports nothing from outside itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import compute_metrics as compute_metrics
    from .engine import create_trainer as create_trainer
    from .engine import mixed_precision as mixed_precision
    from .engine import prepare_model as prepare_model
    from .engine import split as split
    from .handlers import attach_log as attach_log
    from .handlers import attach_stop as attach_stop
    from .process.collectives import average_gradients as average_gradients
    from .process.collectives import distribute as distribute
    from .process.collectives import no_sync as no_sync
    from .report import UsageError as UsageError
    from .report.doctor import print_shards as print_shards
    from .report.summary import log_startup as log_startup
    from .settings import Command as Command
    from .settings import run_command as run_command
    from .state.run import Run as Run
    from .task import Task as Task
    from .task import create_loaders as create_loaders
    from .task import create_task as create_task

# Imported on first use: commands that only start processes run without torch.
_MODULES = {
    "engine": ("compute_metrics", "create_trainer", "mixed_precision", "prepare_model", "split"),
    "process.collectives": ("average_gradients", "distribute", "no_sync"),
    "report": ("UsageError",),
    "report.doctor": ("print_shards",),
    "handlers": ("attach_log", "attach_stop"),
    "report.summary": ("log_startup",),
    "settings": ("Command", "run_command"),
    "state.run": ("Run",),
    "task": ("Task", "create_loaders", "create_task"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
