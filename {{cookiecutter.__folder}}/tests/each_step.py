"""Train with each step of own_steps.py, in float64: ``python3 tests/each_step.py train``.

Each trains in two runs: one in one go, and one that is stopped in between and resumed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import in_float64  # noqa: F401  (from here on, this process computes in float64)
from own_steps import STEPS

from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.config import Config

LENGTHS = {"whole": (12,), "resumed": (5, 12)}
package: Any = import_module("{{ cookiecutter.package_name }}.train")
training = package.training


def train_with_each(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Train with each step, in folders of their names; return the first exit code that is not 0."""
    for step in STEPS:
        package.TrainStep = step
        for folder, lengths in LENGTHS.items():
            for length in lengths:
                run_dir = f"{config.train.run_dir}/{step.__name__}/{folder}"
                settings = replace(config.train, run_dir=run_dir, max_iterations=length)
                if code := training(local_rank, replace(config, train=settings), options):
                    return int(code)
    return 0


if __name__ == "__main__":
    package.training = train_with_each
    sys.exit(main())
