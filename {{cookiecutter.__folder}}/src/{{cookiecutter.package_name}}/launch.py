"""Start a training: what ``scripts/train.sh`` runs. It refuses what cannot work before any process is started."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from . import distributed, storage
from .checks import Check, batch_check, number_in_environment, refuse_other_folders, require, run_dir_check
from .command_line import add_settings, parse
from .config import PACKAGE, Config, DistributedConfig, Size, TrainConfig, to_dict
from .distributed import hardware, launcher, starter, transport
from .errors import UsageError
from .supervision import supervise
from .task import settings as task_settings

SUBMITTED = Path("runs/submitted")

USAGE = """usage: scripts/train.sh [--dry-run] [--here] [--section.field value ...]

  --dry-run  only print the command that starts the training
  --here     start it in processes of this machine alone
"""


def launch(arguments: list[str]) -> int:
    """Start a training with the project's launcher; return the exit code, unless this process becomes the launcher.

    Imports torch only where a machine may lack what the training requires; never for a dry run.

    Raises:
        UsageError: for settings, variables of the environment or a machine that cannot work.
    """
    if "-h" in arguments or "--help" in arguments:
        print(f"{USAGE}\n{launcher.__doc__}\nsettings: python3 -m {PACKAGE} train --help")
        return 0
    here = "--here" in arguments
    given = [argument for argument in arguments if argument not in ("--dry-run", "--here")]
    if here and "RUN_DIR" in (launcher.ON_NODES or {}) and (run_dir := os.environ.get("RUN_DIR")):
        given = ["--train.run_dir", run_dir, *given]
    size = size_here() if here else planned_size()
    # The number first, so that a given one wins, where ``train`` starts the processes.
    number = ["--distributed.nproc_per_node", str(size.nproc_per_node)] if size.nproc_per_node else []
    settings = [*number, *given]
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_settings(parser)
    asked, _ = parse(parser, settings)
    config = distributed.resolve(asked)
    if launcher.ELSEWHERE and not here:
        refuse_other_folders()
    if here:
        if launcher.QUEUED and os.environ.get("SEEDS"):
            raise UsageError(f"leave out SEEDS, which is for jobs, or call python3 -m {PACKAGE} seeds 0-4 --here")
        command = distributed.local_command(size.nproc_per_node, ["train", *given])
    else:
        run_dir = named_run_dir(asked, given)
        command = launcher.command(size, frozen(asked, settings) if launcher.QUEUED else settings, run_dir)
    elsewhere = launcher.ELSEWHERE and not here
    preset = {} if elsewhere else hardware.ENVIRONMENT
    command = ["env", *(f"{name}={os.environ.get(name, value)}" for name, value in preset.items()), *command]
    if "--dry-run" in arguments:
        print(shlex.join(command))
        return 0

    require(setting_checks(config, size.world_sizes(), here=not elsewhere))
    if not starter.STARTS_IN_TRAIN and config.distributed.nproc_per_node != size.nproc_per_node:
        raise UsageError("choose the number of processes with NPROC_PER_NODE=..., so that the launcher knows it too")
    # Look at this machine only if the processes start on it, ``train`` does not look itself, and something may be missing:
    # importing torch takes seconds.
    starts_here = not elsewhere and not starter.STARTS_IN_TRAIN
    machine = starts_here and (hardware.MAY_BE_MISSING or transport.MAY_BE_MISSING)
    variables = dict(os.environ)
    require(distributed.checks(config.distributed, machine, here))
    # What was imported for that may have set variables, which the training is not to inherit.
    os.environ.clear()
    os.environ.update(variables)
    if here and starter.STARTS_IN_TRAIN:
        os.execvp(command[0], command)
    if here:
        return supervise(command, Path(config.train.run_dir))
    return launcher.start(command, Path(config.train.run_dir))


def frozen(config: Config, arguments: list[str]) -> list[str]:
    """Write all settings to a file for a job that begins later; return ``arguments`` that read it alone."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", action="append")
    return ["--config", frozen_file(to_dict(config)), *finder.parse_known_args(arguments)[1]]


def frozen_file(content: dict[str, Any]) -> str:
    """Write YAML to a file that nobody edits; return its name."""
    text = yaml.safe_dump(content, sort_keys=False)
    file = SUBMITTED / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.write(file, text)
    return str(file)


def named_run_dir(config: Config, arguments: list[str]) -> str | None:
    """Return the run directory that a file of settings names, for launchers that would name one themselves."""
    run_dir, is_option = config.train.run_dir, any(word.startswith("--train.run_dir") for word in arguments)
    return None if is_option or run_dir == TrainConfig.run_dir else run_dir


def task_checks(config: Config) -> Iterator[Check]:
    """Yield what the task requires of this machine."""
    yield from getattr(task_settings, "requirements", lambda config: ())(config)


def setting_checks(config: Config, world_sizes: Sequence[int], here: bool = True) -> Iterator[Check]:
    """Yield what the settings require for each number of processes that there may be; ``here``, of this machine."""
    yield batch_check(config.data.batch_size, world_sizes, config.optim.accumulation_steps)
    if here:
        yield from task_checks(config)
        yield run_dir_check(Path(config.train.run_dir))


def planned_size(nproc_per_node: int | None = None) -> Size:
    """Return how many processes a training would have that is started now.

    ``nproc_per_node`` is what was asked for; else NPROC_PER_NODE counts, and then what suits the hardware.

    Raises:
        UsageError: if a variable of the environment is not a number.
    """
    size = launcher.size(nproc_per_node or _asked())
    if size.nproc_per_node:
        return size
    return size._replace(nproc_per_node=hardware.default_nproc_per_node(here=not launcher.ELSEWHERE))


def possible_world_sizes(config: DistributedConfig) -> list[int]:
    """Return how many processes a ``train`` has that no launcher started: its own, if it starts others."""
    return [config.nproc_per_node or hardware.default_nproc_per_node() or 1] if starter.STARTS_IN_TRAIN else [1]


def size_here() -> Size:
    """Return how many processes to start on this machine alone."""
    return Size.fixed(1, _asked() or hardware.default_nproc_per_node())


def _asked() -> int | None:
    return number_in_environment("NPROC_PER_NODE", "how many processes to start on each node")
