"""The package's modules, with the small task in the place of yours: what tests/ imports, once for all tests."""

from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from {{ cookiecutter.package_name }} import (
        acceleration,
        background,
        batches,
        binding,
        changes,
        checkpoints,
        checks,
        command_line,
        config,
        connectivity,
        copies,
        curves,
        distributed,
        doctor,
        early_signals,
        engines,
        errors,
        evaluation,
        export,
        failures,
        handlers,
        introduction,
        optimization,
        prediction,
        profiling,
        randomness,
        ranges,
        run_directory,
        scaling,
        seeds,
        storage,
        trials,
        utilization,
    )
    from {{ cookiecutter.package_name }}.__main__ import main
    from {{ cookiecutter.package_name }}.distributed import backend, launcher
else:
    from small import (
        acceleration,
        background,
        batches,
        binding,
        changes,
        checkpoints,
        checks,
        command_line,
        config,
        connectivity,
        copies,
        curves,
        distributed,
        doctor,
        early_signals,
        engines,
        errors,
        evaluation,
        export,
        failures,
        handlers,
        introduction,
        optimization,
        prediction,
        profiling,
        randomness,
        ranges,
        run_directory,
        scaling,
        seeds,
        storage,
        trials,
        utilization,
    )
    from small.__main__ import main
    from small.distributed import backend, launcher

# Of another type than those of your own task.
objective = import_module("small.task.objective")
task_data = import_module("small.task.data")
task_model = import_module("small.task.model")

NO_DATA = SimpleNamespace(train=(), val=())

__all__ = [
    "NO_DATA",
    "acceleration",
    "backend",
    "background",
    "batches",
    "binding",
    "changes",
    "checkpoints",
    "checks",
    "command_line",
    "config",
    "connectivity",
    "copies",
    "curves",
    "distributed",
    "doctor",
    "early_signals",
    "engines",
    "errors",
    "evaluation",
    "export",
    "failures",
    "handlers",
    "introduction",
    "launcher",
    "main",
    "objective",
    "optimization",
    "prediction",
    "profiling",
    "randomness",
    "ranges",
    "run_directory",
    "scaling",
    "seeds",
    "storage",
    "task_data",
    "task_model",
    "trials",
    "utilization",
]
