"""Work that is done beside the training, such as writing a checkpoint while the next steps are taken."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

# What Linux gives to others first: with a process on each core, writing takes the time in which they wait for each other.
LOWEST_PRIORITY = 19


class Background:
    """Does one piece of work after another, in a thread of its own."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, initializer=_step_back)
        self._begun: deque[Future[object]] = deque()

    def begin(self, work: Callable[[], object]) -> Future[object]:
        """Do ``work`` when all that was begun before is done."""
        self._begun.append(self._worker.submit(work))
        return self._begun[-1]

    def check(self) -> None:
        """Look at what is done by now.

        Raises:
            Exception: what a piece of work has raised.
        """
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()

    def wait(self) -> None:
        """Wait until all is done.

        Raises:
            Exception: what a piece of work has raised.
        """
        while self._begun:
            self._begun.popleft().result()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Wait after the ``with`` block until all is done; whatever becomes of it, if the block itself has failed.

        Raises:
            Exception: what a piece of work has raised.
        """
        try:
            yield
        except BaseException:
            wait(self._begun)
            raise
        self.wait()

    def close(self) -> None:
        """Wait until all is done, whatever becomes of it: the training has ended, and told why."""
        self._worker.shutdown()


def _step_back() -> None:
    """Give this thread the lowest priority, where threads have one of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
