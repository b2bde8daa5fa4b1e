"""The tracker of a run: none. ``nox -s update -- tracker=wandb`` adds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Tracker:
    """Called on rank 0 only.

    Args:
        run_dir: the run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        pass

    def begin(self, settings: Mapping[str, Any], step: int) -> None:
        """Start a run with these settings, or resume it after ``step`` steps."""

    def log(self, numbers: Mapping[str, Any], step: int) -> None:
        """Log numbers such as ``train/loss`` or ``eval/val_loss`` at a step."""

    def call(self, call: Callable[[Any], object]) -> None:
        """Call a function with the tracker, such as to log an image."""

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Keep the curves and the best checkpoint of a finished run."""

    def close(self) -> None:
        """Send what is left."""
