"""What Neptune is told of a run: NEPTUNE_PROJECT and NEPTUNE_API_TOKEN say where; NEPTUNE_MODE=offline keeps it here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ignite.handlers import NeptuneLogger


class Tracker:
    """What tracking.py calls, on rank 0 alone."""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        # Offline, each start is a run of its own: Neptune resumes only what its server has.
        offline = os.environ.get("NEPTUNE_MODE") == "offline"
        which = {"with_id": run_id} if resumes and not offline else {"name": run_dir.name}
        # It is told of everything here; what it would find out by itself is not asked for.
        self.logger = NeptuneLogger(**which, capture_stdout=False, capture_stderr=False, source_files=[])
        self.run_id = run_id if offline else self.logger["sys/id"].fetch()
        for name, value in settings.items():
            self.logger[f"settings/{name.replace('.', '/')}"] = value if value is not None else "none"

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Show numbers at a step."""
        for name, value in numbers.items():
            self.logger[name].append(value, step=step)

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Keep the curves and the best checkpoint."""
        self.logger["curves"].upload(str(picture))
        if checkpoint:
            self.logger["best_checkpoint"].upload(str(checkpoint))

    def close(self) -> None:
        """Send what is left."""
        self.logger.close()
