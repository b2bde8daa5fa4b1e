"""Tells the project's tracker of a run, beside the training; the run directory holds all of it anyway."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from . import storage

if TYPE_CHECKING:
    from .tracker import Tracker

logger = logging.getLogger(__package__)

# A variable that keeps a trial out of the tracker, as those of the tests and of scaling: TRACKING=off.
SWITCH = "TRACKING"
# How long a training waits at its end for what the tracker has not sent yet.
LIMIT_S = 60.0
# How many calls a tracker may be behind.
MOST_WAITING = 10_000
Call = Callable[["Tracker"], object]


class Tracking:
    """Opens, calls and closes the tracker of a run, on rank 0 alone, one call after another in a thread of its own.

    Whatever the tracker cannot do, or waits for, costs one warning, never the training.

    Args:
        run_dir: the folder of the run; its file ``tracker_id`` lets a resumed run be the same one in the tracker.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._calls: Queue[Call | None] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._gave_up = False

    def begin(self, settings: Mapping[str, Any], step: int) -> None:
        """Begin a run with these settings, or resume it after ``step`` steps."""
        if os.environ.get(SWITCH) == "off":
            return
        # One that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._work, args=(flat(settings), step), daemon=True)
        self._thread.start()

    def log(self, group: str, record: Mapping[str, Any]) -> None:
        """Tell of a line of steps.jsonl (group ``train``) or metrics.jsonl (``eval``), at its ``iteration``."""
        numbers = {f"{group}/{name}": value for name, value in record.items() if name != "iteration"}
        step = record["iteration"]
        self._put(lambda tracker: tracker.log(numbers, step))

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Hand over the curves and the best checkpoint of a finished run."""
        self._put(lambda tracker: tracker.finish(picture, checkpoint))

    def close(self) -> None:
        """Let it send what is left; the run may be resumed later."""
        self._put(None)
        if self._thread and not self._gave_up:
            self._thread.join(LIMIT_S)
            if self._thread.is_alive():
                self._give_up(f"no answer for {LIMIT_S:.0f} s")

    def _put(self, call: Call | None) -> None:
        if self._thread and not self._gave_up:
            try:
                self._calls.put_nowait(call)
            except Full:
                self._give_up(f"it is {MOST_WAITING} calls behind")

    def _work(self, settings: dict[str, Any], step: int) -> None:
        try:
            tracker = self._open(settings, step)
            while call := self._calls.get():
                call(tracker)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training can do without
            self._give_up(f"{type(error).__name__}: {error}".splitlines()[0])

    def _open(self, settings: dict[str, Any], step: int) -> Tracker:
        # It may take seconds to import, which the other ranks save.
        from .tracker import Tracker

        file = self.run_dir / "tracker_id"
        resumes = file.exists()
        run_id = file.read_text().strip() if resumes else uuid.uuid4().hex
        tracker = Tracker(self.run_dir, settings, step, run_id, resumes)
        if tracker.run_id:
            storage.write(file, f"{tracker.run_id}\n")
        return tracker

    def _give_up(self, reason: str) -> None:
        self._gave_up = True
        logger.warning("the tracker failed, and is told no more; %s has it all (%s)", self.run_dir, reason)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under names such as ``optim.lr``."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
