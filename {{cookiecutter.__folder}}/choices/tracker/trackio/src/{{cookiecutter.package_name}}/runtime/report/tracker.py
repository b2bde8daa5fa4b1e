"""Log a run to Trackio: to the server of TRACKIO_SERVER_URL, or to files beside the run directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PROJECT = "{{ cookiecutter.project_slug }}"


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        # Read when trackio is imported.
        os.environ.setdefault("TRACKIO_DIR", str(run_dir.parent.resolve() / "trackio"))
        import trackio

        self.trackio = trackio
        self.step = step
        # Trackio identifies a run by its name, and another run may have had this folder.
        self.run_id = run_id if resumes else f"{run_dir.name}-{run_id[:6]}"
        trackio.init(PROJECT, self.run_id, config=settings, resume="allow" if resumes else "never", embed=False)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        self.trackio.log(numbers, step=step)
        self.step = step

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Upload the curves and the best checkpoint."""
        self.trackio.log({"curves": self.trackio.Image(str(picture))}, step=self.step)
        if checkpoint:
            self.trackio.log_artifact(checkpoint, name="best-checkpoint", type="model")

    def close(self) -> None:
        """Send what is left."""
        self.trackio.finish()  # type: ignore[no-untyped-call]
