"""Errors as one line that names the fix, and the logger of the project."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

# The logger of the project's package, which is two levels above this one.
logger = logging.getLogger(__name__.rpartition(".runtime.")[0])


class UsageError(Exception):
    """A request that cannot work. The message is one sentence that names the fix.

    Args:
        exit_code: 2 for bad usage or configuration, 1 for a machine or data that are not ready.
        local_rank: which process of a node prints the message when several raise it.
    """

    def __init__(self, message: str, exit_code: int = 2, local_rank: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.local_rank = local_rank


class SampleError(UsageError):
    """A UsageError raised while reading samples. Other ranks read other samples, so this rank prints it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


@dataclass(frozen=True)
class Check:
    """One condition that must hold before a run can start."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    exit_code: int = 1


def require(checks: Iterable[Check]) -> None:
    """Raise UsageError for the first check that fails."""
    for check in checks:
        if not check.ok:
            raise UsageError(f"{check.found}. {check.fix[:1].upper()}{check.fix[1:]}.", check.exit_code)


def say(text: str) -> None:
    """Print to standard error and, if this process writes it, to log.txt."""
    print(text, file=sys.stderr, flush=True)
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(logging.makeLogRecord({"msg": text}))


def sentence(error: UsageError) -> str:
    """Return the message without the traceback that torch adds to an error from a DataLoader worker."""
    return str(error).rstrip().rpartition(f"{type(error).__name__}: ")[2]


def report_failure(error: BaseException, rank: int, lost_peer: str) -> None:
    """Print why this process failed; ``lost_peer`` is the reason if that was another process."""
    step = getattr(error, "step", None)
    place = f" at step {step}" if step else ""
    if lost_peer:
        state = "does not answer" if re.search("imed out|timeout", lost_peer) else "is gone"
        say(f"[rank {rank}] stopped{place}: another process {state} ({lost_peer})")
    elif explanation := explain(error):
        say(f"[rank {rank}] {explanation}")
    else:
        say(f"[rank {rank}] failed{place}:\n{traceback.format_exc().rstrip()}")


def explain(error: BaseException) -> str:
    """Return cause and fix for a fault of the machine; empty for any other error."""
    text = str(error)
    no_memory = re.search("DefaultCPUAllocator: can't allocate|RESOURCE_EXHAUSTED|unable to mmap", text)
    if no_memory or type(error).__name__ in ("OutOfMemoryError", "MemoryError"):
        return "out of memory. Raise optim.accumulation_steps or use more processes; start again to resume."
    if "DataLoader worker" in text and re.search("Bus error|No space left on device|shared memory", text):
        return "a DataLoader worker ran out of shared memory. Enlarge /dev/shm (--shm-size in a container) or use fewer workers."
    if died := re.search(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:exited unexpectedly|is killed by)", text):
        return f"DataLoader worker {died[1]} died. Read its message above; if memory was short, lower data.num_workers."
    if type(error).__name__ == "BdbQuit":
        return f"the debugger was left, or has no terminal. Use python3 -m {logger.name} train --distributed.nproc_per_node 1."
    if re.match("cannot pickle|Can't (pickle|get local)", text) and "DataLoaderIter" in traceback.format_exc():
        return f"the data cannot be sent to workers ({text}). Open files on first use, in __getitem__, or set data.num_workers 0."
    if re.search("DataLoader timed out", text):
        return "no batch arrived within distributed.timeout_s. If a worker printed an error above, return tensors from collate."
    return ""
