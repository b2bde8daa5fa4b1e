"""Log a run to TensorBoard: event files in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ignite.handlers import TensorboardLogger
from matplotlib.image import imread


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = run_id
        self.step = step
        # Steps after the last checkpoint of a killed run are logged again.
        self.logger = TensorboardLogger(run_dir / "tensorboard", purge_step=step + 1 if resumes else None)
        table = "".join(f"| {name} | {value} |\n" for name, value in settings.items())
        self.logger.writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}", step + 1)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        for name, value in numbers.items():
            self.logger.writer.add_scalar(name, value, step)
        self.logger.writer.flush()
        self.step = step

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Log the curves and the path of the best checkpoint: TensorBoard stores no files."""
        pixels = imread(picture)
        self.logger.writer.add_image("curves", pixels[..., :3], self.step, dataformats="HWC")
        self.logger.writer.add_text("best checkpoint", str(checkpoint), self.step)

    def close(self) -> None:
        """Write what is left."""
        self.logger.close()
