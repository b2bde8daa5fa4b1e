"""Starts the ranks of the tests' trainings as copies of one process that has imported torch, which takes the longest of them.

Reads requests from standard input, one line of JSON each, and answers each by the exit codes of its ranks. A rank that
fails ends the others, as under a launcher.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any


def import_all() -> None:
    """Import what trainings import; no thread may begin here, as copies would lack it."""
    for name in ("small.__main__", "small.training", "matplotlib.figure", "torch._dynamo"):
        importlib.import_module(name)


def next_rank() -> tuple[dict[str, Any], int] | None:
    """Serve requests until there are no more, which gives None; in a copy, return its request and its rank."""
    for line in sys.stdin:
        request = json.loads(line)
        codes: list[int] = []
        living: set[int] = set()
        for rank in range(request["processes"]):
            pid = os.fork()
            if not pid:
                return request, rank
            living.add(pid)
        while living:
            pid, status = os.wait()
            living.discard(pid)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                for other in living:
                    os.kill(other, signal.SIGKILL)
        print(json.dumps(codes), flush=True)
    return None


def run(request: dict[str, Any], rank: int) -> int:
    """Be one rank: run the package's command in its folder, and write what it says to files; return the exit code."""
    size = str(request["processes"])
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    # Without those of the test that came first, whichever it was.
    os.environ.clear()
    os.environ.update({**request["variables"], **place})
    os.chdir(request["folder"])
    for number, name in enumerate(("output", "errors"), 1):
        os.dup2(os.open(f"{request['files']}/{name}-{rank}", os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code: int = importlib.import_module(f"{request['package']}.__main__").main(request["arguments"])
    return code


if __name__ == "__main__":
    import_all()
    mine = next_rank()
    sys.exit(run(*mine) if mine else 0)
