"""Programs that take turns: each runs for a lap while the others are stopped.

All are measured within seconds of each other, on a machine whose speed drifts, and none has to start again.
"""

import os
import queue
import re
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import Self

LIMIT_S = 300
Seconds = dict[str, list[float]]
"""of each lap, by program"""


class Program:
    """A program that runs until the ``with`` block ends.

    Args:
        lap: regular expression of the line that it prints after each lap.
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
            env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **(environment or os.environ)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[tuple[float, str] | None] = queue.Queue()
        self._output: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers(), psutil.Process(self._process.pid)):
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def seconds_until(self, pattern: str) -> float:
        """Return the seconds from now until the program prints a line that matches.

        Raises:
            SystemExit: if it ends first, or prints none in time.
        """
        start, limit = time.perf_counter(), time.monotonic() + LIMIT_S
        while True:
            with suppress(queue.Empty):
                line = self._lines.get(timeout=max(limit - time.monotonic(), 0))
                if line and re.search(pattern, line[1]):
                    return line[0] - start
                if line:
                    continue
            raise SystemExit(f"{' '.join(self._command)} ended or hung:\n{''.join(self._output)}")

    def lap(self) -> float:
        """Run for a lap, then stop; return the seconds."""
        while not self._lines.empty():
            self._lines.get()
        self._send(signal.SIGCONT)
        seconds = self.seconds_until(self._lap)
        self._send(signal.SIGSTOP)
        return seconds

    def memory_mib(self) -> int:
        """Return the peak memory of its largest process."""
        peaks = [0]
        for process in self._workers():
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peaks += [int(kib) >> 10 for kib in re.findall(r"VmHWM:\s*(\d+)", status)]
        return max(peaks)

    def _workers(self) -> list[Any]:
        """Return the processes that compute: all except a launcher."""
        process = psutil.Process(self._process.pid)
        computes = Path(self._command[0]).name.startswith("python")
        with suppress(psutil.Error):
            return [*([process] if computes else []), *process.children(recursive=True)]
        return []

    def _send(self, number: int) -> None:
        for process in self._workers():
            with suppress(psutil.Error):
                process.send_signal(number)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._output.append(line)
            self._lines.put((time.perf_counter(), line))
        self._lines.put(None)


def in_turns(
    programs: Mapping[str, Callable[[], Program]], starts: int, laps: int
) -> tuple[Seconds, dict[str, int]]:
    """Return the seconds of each program's laps, and its memory in MiB.

    All of them are started ``starts`` times, because two processes of the same program differ in speed by up to a tenth. After
    a lap to warm up, they run ``laps`` laps in turns, in an order that rotates.
    """
    seconds: Seconds = {name: [] for name in programs}
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


def ratio_cell(numbers: list[float], others: list[float]) -> str:
    """Return the median of the ratios of two programs' laps, with the lowest and the highest, for a table."""
    ratios = [number / other for number, other in zip(numbers, others, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
