"""The commands of ``python3 -m {{ cookiecutter.package_name }}``. Yours to extend."""

from __future__ import annotations

import sys
from typing import Any

from jsonargparse.typing import PositiveInt

from .config import Config
from .runtime import Command, run_command

WORLD_SIZE = {"--world-size": {"type": PositiveInt, "default": 2, "help": "number of processes"}}
SPLIT = {"--split": {"choices": ["val", "test"], "default": "val", "help": "the data to evaluate"}}
JSON = {"--json": {"action": "store_true", "help": "print one JSON object"}}

COMMANDS = {
    "train": Command("Train, or resume a run.", "train:training", in_every_process=True),
    "evaluate": Command(
        "Evaluate a checkpoint.", "evaluate:evaluation", SPLIT, in_every_process=True, of_checkpoint=True
    ),
    "launch": Command(
        "Train in all processes of the launcher, as scripts/train.sh does.", "runtime.process.start:launch"
    ),
    "shards": Command("Show which samples each rank gets.", "__main__:shards", WORLD_SIZE),
    "doctor": Command("Check that this machine is ready.", "runtime.report.doctor:doctor", JSON),
}


def shards(config: Config, options: dict[str, Any]) -> int:
    """Print which samples each of ``--world-size`` ranks gets."""
    from .runtime import print_shards
    from .task import load_task

    task, settings = load_task(config.task), (config.data.batch_size, config.train.seed, options["world_size"])
    return print_shards(len(task.train), *settings, task.order)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    return run_command(COMMANDS, Config, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
