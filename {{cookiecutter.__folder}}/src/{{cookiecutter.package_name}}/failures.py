"""What is said of an exception that ends a training: one sentence, where it can be said in one."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from .meter import Meter

# What says which step is being done; another thread may be the one that ends this process.
_steps: list[Callable[[], int]] = []


@contextmanager
def told_with_step(trainer: Any, meter: Meter) -> Iterator[None]:
    """Let whatever ends this process inside the ``with`` block be told with the step of ignite's engine ``trainer``."""

    def step() -> int:
        return int(trainer.state.iteration) + meter.waits_for_data

    _steps.append(step)
    try:
        yield
    # Whoever leaves by sys.exit has not finished the training, whatever the code.
    except (Exception, SystemExit) as error:
        error.__dict__["step"] = step()
        raise
    finally:
        _steps.remove(step)


def tell(error: BaseException, rank: int, lost: str, find_silent: Callable[[], str]) -> None:
    """Print what has ended this process.

    Args:
        lost: why an exchange with another process failed, if one did; that process says, or its launcher, what it was.
        find_silent: returns a sentence on the ranks that do not answer; it may take some seconds.
    """
    step = getattr(error, "step", None) or next((step() for step in _steps), None)
    at = f" at step {step}" if step else ""
    if lost:
        other = "does not answer" if re.search("imed out|timeout", lost) else "is gone"
        say(f"[rank {rank}] ends{at}, as another process {other}: {lost}")
        if silent := find_silent():
            say(f"[rank {rank}] {silent}")
            sum_up(f"[rank {rank}] {silent}")
    else:
        sentence = explain(error)
        say(f"[rank {rank}] " + (sentence or f"failed{at}:\n{traceback.format_exc().rstrip()}"))
        sum_up(f"[rank {rank}] " + (sentence or f"failed{at}: {in_one_line(error)}"))


def in_one_line(error: BaseException) -> str:
    """Return what an error says in its first line, as one of torch may go on for a hundred, and where it came from.

    Of what a loader process has raised, torch makes a text with a traceback, below which the error itself stands.
    """
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    if "Original Traceback" in str(error):
        lines = lines[max(place for place, line in enumerate(lines) if line.startswith(" ")) + 1 :] or lines
    # The note of Reader.add_place.
    place = f" ({lines[-1]})" if lines[1:] and lines[-1].startswith("in ") else ""
    return lines[0] + place


def say(text: str) -> None:
    """Print to standard error, at once, and to log.txt where this process writes it."""
    print(text, file=sys.stderr, flush=True)
    for handler in logging.getLogger(__package__).handlers:
        if isinstance(handler, logging.FileHandler):
            # It may be the very file that cannot be written.
            with suppress(UsageError):
                handler.handle(logging.makeLogRecord({"msg": text}))


def sum_up(sentence: str) -> None:
    """Let the launcher repeat what has been said at the end of its own report, if it is one of torch that asks for that."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # The report begins with the one that failed first.
        more = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": {"message": sentence, "extraInfo": more}}))


def explain(error: BaseException) -> str:
    """Return what has happened and the fix, for what a machine does to a training; nothing for any other error."""
    text = str(error).strip() or type(error).__name__
    no_memory = re.search("DefaultCPUAllocator: can't allocate|RESOURCE_EXHAUSTED", text)
    if no_memory or type(error).__name__ in ("OutOfMemoryError", "MemoryError"):
        tried = re.search(r"ried to allocate ([\d.]+ \w+)", text)
        fix = "raise optim.accumulation_steps or train in more processes, and start again to resume; docs/speed.md says more"
        return f"is out of memory{f' (it asked for {tried[1]} more)' if tried else ''}: {fix}"
    if found := re.search(r"x must contain .*; found <class '([\w.]+)'>", text):
        fix = "let collate of task/data.py return tensors, text, or lists and dicts of them"
        return f"cannot move a batch to the device, as there is a {found[1]} in it: {fix}"
    wrapped = re.search(r"'DistributedDataParallel' object has no attribute '(\w+)'", text)
    if wrapped or "got mixed torch.Tensor and DTensor" in text:
        fix = "let forward of task/objective.py call model(...) alone, and the model do the rest in its own forward"
        asked = wrapped[1] if wrapped else "a part"
        return f"asks for {asked} of the model, which is wrapped where several processes train it: {fix}"
    if found := re.search(r"(?:pickle|get) local object (.+)$|Can't pickle (<function .+?>)", text):
        fix = "define it at the top of a module, or set data.num_workers 0"
        return f"cannot hand {found[1] or found[2]} over to loader processes, as it has no name that they could find: {fix}"
    if "Expected to have finished reduction" in text:
        fix = "let the loss use them, freeze them with requires_grad_(False), or set distributed.static_graph true, if they are "
        fix += "the same ones in every step"
        return f"has weights that took no part in the loss of the last step, which ddp cannot average: {fix}"
    if re.search(r"'Sparse[A-Z]+' backend|cadd_sparse|does not support sparse gradients", text):
        fix = "set sparse=False, or return torch's SparseAdam from create_optimizer, without clipping, compression and fsdp2"
        return f"has sparse gradients, as nn.Embedding has with sparse=True, where torch takes dense ones only: {fix}"
    # What torch says of a loader process that has ended.
    if died := re.search(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:exited unexpectedly|is killed by)", text):
        fix = "look at what it said; if memory was short, lower data.num_workers; start again to resume"
        return f"has lost its loader process {died[1]}, which ended or was killed: {fix}"
    return ""
