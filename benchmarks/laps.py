"""Trainings that take turns: each takes a lap while all others stand still.

What they are compared by is then measured within seconds, on a machine whose speed drifts, and nobody starts anew for it.
"""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from typing_extensions import Self

LIMIT_S = 300


class Program:
    """A training that runs on and on, until the ``with`` block ends.

    Args:
        lap: regular expression of the line that ends a lap.
    """

    def __init__(
        self,
        command: list[str],
        lap: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._command, self._lap = command, lap
        self._process = subprocess.Popen(
            command,
            env=environment or os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[tuple[float, str] | None] = queue.Queue()
        self._said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        for process in (*self._trainings(), psutil.Process(self._process.pid)):
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def seconds_until(self, pattern: str) -> float:
        """Return how long it takes from now until the program says what the pattern describes.

        Raises:
            SystemExit: if it ends before.
        """
        since, until = time.perf_counter(), time.monotonic() + LIMIT_S
        while True:
            with suppress(queue.Empty):
                told = self._lines.get(timeout=max(until - time.monotonic(), 0))
                if told and re.search(pattern, told[1]):
                    return told[0] - since
                if told:
                    continue
            raise SystemExit(f"{' '.join(self._command)} ended, or hung:\n{''.join(self._said)}")

    def lap(self) -> float:
        """Let it run for a lap, and stand still again; return the seconds."""
        while not self._lines.empty():
            self._lines.get()
        self._send(signal.SIGCONT)
        seconds = self.seconds_until(self._lap)
        self._send(signal.SIGSTOP)
        return seconds

    def memory_mib(self) -> int:
        """Return the most that its largest process has used."""
        most = 0
        for process in self._trainings():
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                most = max(most, *(int(kib) for kib in re.findall(r"VmHWM:\s*(\d+)", status)), 0)
        return most >> 10

    def _trainings(self) -> list[Any]:
        """Return the processes that compute: all but the launcher, which only looks after them."""
        process = psutil.Process(self._process.pid)
        trains = Path(self._command[0]).name.startswith("python")
        with suppress(psutil.Error):
            return [*([process] if trains else []), *process.children(recursive=True)]
        return []

    def _send(self, number: int) -> None:
        for process in self._trainings():
            with suppress(psutil.Error):
                process.send_signal(number)

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._said.append(line)
            self._lines.put((time.perf_counter(), line))
        self._lines.put(None)


def in_turns(
    programs: Mapping[str, Callable[[], Program]], starts: int, laps: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of each program's laps, and its memory in MiB.

    All of them are started several times, as a process may be a tenth faster than the next one of the same program, and take
    their laps in turns, after one to warm up. Who comes first changes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    memory = dict.fromkeys(programs, 0)
    names = list(programs)
    for _ in range(starts):
        with ExitStack() as running:
            started: dict[str, Program] = {}
            for name, start in programs.items():
                started[name] = running.enter_context(start())
                started[name].lap()
            for number in range(laps):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    seconds[name].append(started[name].lap())
            for name, program in started.items():
                memory[name] = max(memory[name], program.memory_mib())
    return seconds, memory
