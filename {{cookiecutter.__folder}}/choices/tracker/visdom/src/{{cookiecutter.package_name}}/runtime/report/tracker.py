"""Log a run to Visdom: to the server of VISDOM_SERVER_URL and VISDOM_PORT, by default on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ignite.handlers import VisdomLogger
from matplotlib.image import imread

PROJECT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """Called by tracking.py. A run is a Visdom environment with a window for each number."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = run_id if resumes else f"{PROJECT}-{run_dir.name}-{run_id[:6]}".replace("_", "-")
        self.logger = VisdomLogger(env=self.run_id)
        lines = "".join(f"{name}: {value}<br>" for name, value in settings.items())
        self.logger.vis.text(lines, win="settings", opts={"title": "settings"})

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        for name, value in numbers.items():
            opts = {"title": name, "xlabel": "step"}
            self.logger.vis.line([value], [step], win=name, name=name, update="append", opts=opts)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Log the curves and the path of the best checkpoint: Visdom stores no files."""
        pixels = 255 * imread(picture)[..., :3].transpose(2, 0, 1)
        self.logger.vis.image(pixels, win="curves", opts={"title": "curves"})
        self.logger.vis.text(str(checkpoint), win="best", opts={"title": "best checkpoint"})

    def close(self) -> None:
        """Save the environment on the server. VisdomLogger.close would remove its windows."""
        self.logger.vis.save([self.run_id])
