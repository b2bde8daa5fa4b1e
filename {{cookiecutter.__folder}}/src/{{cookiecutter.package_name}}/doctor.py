"""Is this machine ready to train? One line for each check, and the fix for the first one that fails."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import distributed
from .config import Config, Refused
from .data import check_batch_size, import_torchvision
from .distributed import Check

PACKAGES = ("torch", "pytorch-ignite")


def examine(config: Config) -> Iterator[Check]:
    """Yield every check, the most basic first."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    yield Check("versions", True, f"Python {platform.python_version()}, {versions}")
    yield from distributed.checks(config.distributed)
    yield _batch_check(config)
    yield _data_check(config)
    yield _run_dir_check(Path(config.train.run_dir))


def preflight(config: Config) -> None:
    """Raise Refused with the first check that fails, in one sentence."""
    for check in examine(config):
        if not check.ok:
            raise Refused(f"{check.found}: {check.fix}", check.exit_code)


def doctor(config: Config) -> int:
    """Print every check and the fix of the first that fails; return the exit code."""
    checks = list(examine(config))
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found"):
        table.add_column(title)
    for check in checks:
        table.add_row(check.name, "[green]ok[/]" if check.ok else "[red]no[/]", check.found)
    Console().print(table)
    failed = next((check for check in checks if not check.ok), None)
    if failed:
        print(f"\nTo do: {failed.fix}.")
        return 1
    print("\nReady: scripts/train.sh")
    return 0


def _batch_check(config: Config) -> Check:
    world_size = distributed.planned_world_size(config.distributed)
    found = f"{config.data.batch_size} samples over {world_size} processes"
    try:
        check_batch_size(config.data.batch_size, world_size, config.optim.micro_batches)
    except Refused as refused:
        reason, _, fix = str(refused).partition(": ")
        return Check("global batch", False, reason, fix, refused.exit_code)
    return Check("global batch", True, found)


def _data_check(config: Config) -> Check:
    if config.data.dataset in ("cifar10", "folder"):
        try:
            import_torchvision(config.data.dataset)
        except Refused as refused:
            reason, _, fix = str(refused).partition(": ")
            return Check("data", False, reason, fix, refused.exit_code)
    return Check("data", True, config.data.dataset)


def _run_dir_check(run_dir: Path) -> Check:
    existing = next(folder for folder in (run_dir, *run_dir.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check("run directory", True, f"{run_dir} can be written")
    except OSError as error:
        found = f"{run_dir} cannot be written ({existing}: {error.strerror})"
        return Check("run directory", False, found, "choose another train.run_dir")
