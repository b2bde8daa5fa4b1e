"""Start a run with the project's launcher: what ``scripts/train.sh`` executes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..report import UsageError, require
from . import Size, backend, hardware, launcher, number_from_environment, start


def launch(program: str, parse: Callable[[list[str]], Any], arguments: list[str]) -> int:
    """Start ``python3 -m program train`` in every process; return the exit code, unless this process becomes the launcher.

    Args:
        parse: returns the settings for a list of options.

    Raises:
        UsageError: for settings, variables or a machine that cannot work.
    """
    given = [argument for argument in arguments if argument != "--dry-run"]
    size = planned_size()
    options = [*(["--distributed.nproc_per_node", str(size.nproc_per_node)] if size.nproc_per_node else []), *given]
    config = parse(options)
    resolved = start.resolve(config)
    if size.nproc_per_node != resolved.distributed.nproc_per_node:
        raise UsageError("the launcher sets distributed.nproc_per_node. Use NPROC_PER_NODE=... instead.")
    if launcher.ELSEWHERE and not Path("scripts").is_dir():
        raise UsageError("a cluster starts scripts/ of this folder. Change to the project's folder first.")
    run_dir = config.train.run_dir if config.train.run_dir != type(config.train)().run_dir else None
    options = launcher.freeze(config, options)
    command = launcher.command(size, ["-m", program, "train", *options], run_dir)
    if not launcher.ELSEWHERE:
        variables = (f"{name}={os.environ.get(name, value)}" for name, value in hardware.ENVIRONMENT.items())
        command = ["env", *variables, *command]
    if "--dry-run" in arguments:
        print(shlex.join(command))
        return 0
    require(start.setting_checks(resolved, size.world_sizes()))
    require(launcher.checks())
    if backend.CHECKED_IN_LAUNCH and not launcher.ELSEWHERE and launcher.NAME != "spawn":
        kept = dict(os.environ)
        require(start.checks(resolved))
        # Imported packages may have set variables, which the run must not inherit.
        os.environ.clear()
        os.environ.update(kept)
    return launcher.start(command, Path(resolved.train.run_dir))


def planned_size() -> Size:
    """Return how many processes a run that starts now would have."""
    size = launcher.size(number_from_environment("NPROC_PER_NODE"))
    if size.nproc_per_node:
        return size
    return size._replace(nproc_per_node=hardware.default_nproc_per_node(here=not launcher.ELSEWHERE))
