"""Log a run to Weights & Biases. WANDB_MODE=offline writes to the run directory, for ``wandb sync``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb
from ignite.handlers import WandBLogger

PROJECT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = run_id
        self.finished = False
        self.logger = WandBLogger(project=PROJECT, name=run_dir.name, id=run_id, resume="allow", dir=str(run_dir))
        self.logger.config.update(settings, allow_val_change=True)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step. W&B ignores steps that it has seen, such as those of a killed run."""
        self.logger.log(numbers, step=step)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Upload the curves and the best checkpoint."""
        self.logger.log({"curves": wandb.Image(str(picture))})
        if checkpoint:
            self.logger.log_artifact(str(checkpoint), name=f"checkpoint-{self.run_id}", type="model")
        self.finished = True

    def close(self) -> None:
        """Send what is left. A run that stopped or failed gets exit code 1; it may be resumed."""
        wandb.finish(exit_code=0 if self.finished else 1)
