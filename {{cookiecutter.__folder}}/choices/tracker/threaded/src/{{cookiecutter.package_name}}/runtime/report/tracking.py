"""Log a run to the project's tracker, in a thread of its own: a service that fails or hangs costs one warning."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from ..state import write
from . import logger

if TYPE_CHECKING:
    from . import tracker

# TRACKING=off switches the tracker off, as for tests.
SWITCH = "TRACKING"
# How long the end of a run waits for the tracker.
LIMIT_S = 60.0
# How many calls may wait in the queue.
QUEUE_SIZE = 10_000
Call = Callable[["tracker.Tracker"], object]


class Tracker:
    """Called on rank 0 only. Passes every call to ``tracker.py``.

    Args:
        run_dir: the run directory. Its file ``tracker_id`` makes a resumed run continue in the tracker.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._calls: Queue[Call | None] = Queue(QUEUE_SIZE)
        self._thread: threading.Thread | None = None
        self._gave_up = False

    def begin(self, settings: Mapping[str, Any], step: int) -> None:
        """Start a run with these settings, or resume it after ``step`` steps."""
        if os.environ.get(SWITCH) != "off":
            # A daemon does not keep the process alive if the service hangs.
            self._thread = threading.Thread(target=self._work, args=(flat(settings), step), daemon=True)
            self._thread.start()

    def log(self, numbers: Mapping[str, Any], step: int) -> None:
        """Log numbers such as ``train/loss`` or ``eval/val_loss`` at a step."""
        numbers = {name: value for name, value in numbers.items() if not name.endswith("/iteration")}
        self.call(lambda tracker: tracker.log(numbers, step))

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        """Keep the curves and the best checkpoint of a finished run."""
        self.call(lambda tracker: tracker.finish(picture, checkpoint))

    def close(self) -> None:
        """Send what is left; the run may be resumed later."""
        self.call(None)
        if self._thread and not self._gave_up:
            self._thread.join(LIMIT_S)
            if self._thread.is_alive():
                self._give_up(f"no answer for {LIMIT_S:.0f} s")

    def call(self, call: Call | None) -> None:
        """Call a function with the tracker of ``tracker.py``, in its thread, such as to log an image; None ends it."""
        if self._thread and not self._gave_up:
            try:
                self._calls.put_nowait(call)
            except Full:
                self._give_up(f"{QUEUE_SIZE} calls are waiting")

    def _work(self, settings: dict[str, Any], step: int) -> None:
        try:
            tracker = self._open(settings, step)
            while call := self._calls.get():
                call(tracker)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - the run does not need the tracker
            self._give_up(f"{type(error).__name__}: {error}".splitlines()[0])

    def _open(self, settings: dict[str, Any], step: int) -> tracker.Tracker:
        # It may take seconds to import, and only this rank needs it.
        from . import tracker

        file = self.run_dir / "tracker_id"
        resumes = file.exists()
        run_id = file.read_text().strip() if resumes else uuid.uuid4().hex
        opened = tracker.Tracker(self.run_dir, settings, step, run_id, resumes)
        write(file, f"{opened.run_id}\n")
        return opened

    def _give_up(self, reason: str) -> None:
        self._gave_up = True
        logger.warning("the tracker failed and gets no more data; %s has everything (%s)", self.run_dir, reason)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under names such as ``optim.lr``."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
