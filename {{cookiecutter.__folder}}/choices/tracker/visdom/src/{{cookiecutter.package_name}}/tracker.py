"""What Visdom is told of a run: the server of VISDOM_SERVER_URL and VISDOM_PORT, by default on this machine."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ignite.handlers import VisdomLogger
from matplotlib import pyplot

PROJECT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """What tracking.py calls, on rank 0 alone; each number has a window, in the run's environment of Visdom."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = run_id if resumes else f"{PROJECT}-{run_dir.name}-{run_id[:6]}".replace("_", "-")
        self.logger = VisdomLogger(env=self.run_id)
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.sent: list[Future[None]] = []
        lines = "".join(f"{name}: {value}<br>" for name, value in settings.items())
        self.logger.vis.text(lines, win="settings", opts={"title": "settings"})

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Show numbers at a step, without waiting for the server."""
        while self.sent and self.sent[0].done():
            self.sent.pop(0).result()
        self.sent.append(self.executor.submit(self._draw, numbers, step))

    def _draw(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            opts = {"title": name, "xlabel": "step"}
            self.logger.vis.line([value], [step], win=name, name=name, update="append", opts=opts)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Show the curves and the path of the best checkpoint: Visdom keeps no files."""
        drawn = 255 * pyplot.imread(picture)[..., :3].transpose(2, 0, 1)
        self.logger.vis.image(drawn, win="curves", opts={"title": "curves"})
        self.logger.vis.text(str(checkpoint), win="best", opts={"title": "best checkpoint"})

    def close(self) -> None:
        """Send what is left; VisdomLogger.close would also remove every window."""
        for sent in self.sent:
            sent.result()
        self.executor.shutdown()
        self.logger.vis.save([self.run_id])
