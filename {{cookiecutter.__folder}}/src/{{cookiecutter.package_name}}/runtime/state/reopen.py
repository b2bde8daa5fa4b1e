"""Open a run directory: new, or left by an earlier run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from ..report import UsageError
from . import LOCK, lock, plain, saved_checkpoints


@dataclass
class Opened:
    """What was found in a run directory."""

    refusal: str = ""
    """why it cannot be used"""
    start_from: str = ""
    """the checkpoint that ``train.resume`` names, unless the folder has newer ones of this run"""
    lock: IO[str] | None = None
    warnings: list[str] = field(default_factory=list)


def open_run_directory(settings: Any) -> Opened:
    """Create or reopen ``train.run_dir``, and lock it."""
    path, resume = Path(settings.train.run_dir), settings.train.resume
    opened, file = Opened(), path / "config.yaml"
    kept = bool(saved_checkpoints(path / "checkpoints", "*"))
    if resume == "none" and (kept or file.exists()):
        return Opened(f"{path} already holds a run. Choose another train.run_dir, or train.resume auto.")
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        opened.lock, no_locks = lock(path / LOCK)
    except UsageError as error:
        return Opened(str(error))
    except OSError as error:
        return Opened(f"train.run_dir {path} cannot be written ({error.strerror}). Choose another one.")
    if no_locks:
        opened.warnings.append(f"{path} cannot be locked ({no_locks}); make sure no other run writes there")
    changes = changed_settings(file, plain(settings)) if file.exists() else {}
    if resume not in ("auto", "none") and (not kept or "train.resume" in changes):
        if kept and Path(resume).absolute().parent != (path / "checkpoints").absolute():
            fix = f"Choose another train.run_dir for one that starts from {resume}."
            return Opened(f"{path} already holds a run. {fix}", lock=opened.lock)
        opened.start_from = resume
    if changes:
        opened.warnings.append("settings changed since this run began: " + ", ".join(changes.values()))
    return opened


def changed_settings(file: Path, new: dict[str, Any]) -> dict[str, str]:
    """Return the settings that differ from those in a file; of a damaged file, none."""
    try:
        old = dict(yaml.safe_load(file.read_text(errors="replace")))
        return {
            f"{section}.{name}": f"{section}.{name} {old[section].get(name)} -> {value}"
            for section, values in new.items()
            for name, value in values.items()
            if old[section].get(name) != value
        }
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        return {}
