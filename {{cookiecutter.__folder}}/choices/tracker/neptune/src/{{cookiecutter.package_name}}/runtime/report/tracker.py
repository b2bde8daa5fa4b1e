"""Log a run to Neptune: to NEPTUNE_PROJECT, with NEPTUNE_API_TOKEN. NEPTUNE_MODE=offline keeps it on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ignite.handlers import NeptuneLogger


class Tracker:
    """Called by tracking.py."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        # Neptune resumes only runs of its server; offline, each start is a new run.
        offline = os.environ.get("NEPTUNE_MODE") == "offline"
        which = {"with_id": run_id} if resumes and not offline else {"name": run_dir.name}
        self.logger = NeptuneLogger(**which, capture_stdout=False, capture_stderr=False, source_files=[])
        self.run_id = run_id if offline else self.logger["sys/id"].fetch()
        for name, value in settings.items():
            self.logger[f"settings/{name.replace('.', '/')}"] = value if value is not None else "none"

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers at a step."""
        for name, value in numbers.items():
            self.logger[name].append(value, step=step)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Upload the curves and the best checkpoint."""
        self.logger["curves"].upload(str(picture))
        if checkpoint:
            self.logger["best_checkpoint"].upload(str(checkpoint))

    def close(self) -> None:
        """Send what is left."""
        self.logger.close()
