"""What a tracker is told of a run: nothing, as this project was made without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Tracker:
    """What tracking.py calls, on rank 0 alone, beside the training; fill it in to use a tracker of your own.

    Args:
        run_dir: the run directory.
        settings: all settings, by names such as ``optim.lr``.
        step: steps that are done; 0, unless the run resumes.
        run_id: what identifies the run in the tracker; a resumed run gets the one that ``self.run_id`` was before. An
            empty one is not kept.
        resumes: whether the run began earlier.
    """

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = ""

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Show numbers such as ``train/loss`` or ``eval/val_loss`` at a step."""

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Keep the curves and the best checkpoint, if there is one, of a finished run."""

    def close(self) -> None:
        """Send what is left."""
