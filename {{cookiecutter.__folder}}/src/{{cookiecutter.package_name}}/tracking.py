"""Tells the project's tracker of a run; the run directory holds all of it anyway."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import storage

if TYPE_CHECKING:
    from .tracker import Tracker

logger = logging.getLogger(__package__)


class Tracking:
    """Opens, calls and closes the tracker of a run, on rank 0 alone.

    Whatever the tracker cannot do costs one warning, never the training.

    Args:
        run_dir: the folder of the run; its file ``tracker_id`` lets a resumed run be the same one in the tracker.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.tracker: Tracker | None = None

    def begin(self, settings: Mapping[str, Any], step: int) -> None:
        """Begin a run with these settings, or resume it after ``step`` steps."""
        file = self.run_dir / "tracker_id"
        resumes = file.exists()
        with self._guarded():
            # It may take seconds to import, which the other ranks save.
            from .tracker import Tracker

            run_id = file.read_text().strip() if resumes else uuid.uuid4().hex
            self.tracker = Tracker(self.run_dir, flat(settings), step, run_id, resumes)
            storage.write(file, f"{self.tracker.run_id}\n")

    def log(self, group: str, record: Mapping[str, Any]) -> None:
        """Tell of a line of steps.jsonl (group ``train``) or metrics.jsonl (``eval``), at its ``iteration``."""
        if self.tracker:
            with self._guarded():
                numbers = {f"{group}/{name}": float(record[name]) for name in record if name != "iteration"}
                self.tracker.log(numbers, record["iteration"])

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Hand over the curves and the best checkpoint of a finished run."""
        if self.tracker:
            with self._guarded():
                self.tracker.finish(picture, checkpoint)

    def close(self) -> None:
        """Send what is left; the run may be resumed later."""
        if self.tracker:
            with self._guarded():
                self.tracker.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the training can do without
            self.tracker = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            logger.warning("the tracker failed, and is told no more; %s has it all (%s)", self.run_dir, reason)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under names such as ``optim.lr``."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
