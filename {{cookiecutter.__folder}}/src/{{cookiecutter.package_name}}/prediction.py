"""What would a step take in a world that is larger than this machine? From what one process computes, and from the link."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

# Worlds for which a step is predicted.
PREDICTED = [2**power for power in range(1, 13)]
# Twice the processes are worth it if they raise the speed by this part at least.
PAYS = 0.1


class Predicted(NamedTuple):
    """The milliseconds of a step that so many processes would take, by three ways to exchange."""

    processes: int
    batch_size: int
    ring_ms: float
    tree_ms: float
    master_ms: float


@dataclass(frozen=True)
class Link:
    """How the processes reach each other, as a small all-reduce and a large one tell."""

    latency_s: float
    """of one message"""
    bandwidth: float
    """bytes per second"""

    def ring(self, size: float, processes: int) -> float:
        """Return the seconds of an all-reduce in which each process sends to the next one."""
        rounds = 2 * (processes - 1)
        return rounds * self.latency_s + rounds / processes * size / self.bandwidth

    def tree(self, size: float, processes: int) -> float:
        """Return the seconds of one that goes up a binary tree and down again."""
        return 2 * math.ceil(math.log2(processes)) * (self.latency_s + size / self.bandwidth)

    def master(self, size: float, processes: int) -> float:
        """Return the seconds of one in which a single process receives from all others, and sends to them."""
        return 2 * (processes - 1) * (self.latency_s + size / self.bandwidth)


def link_of(measured: dict[str, Any], processes: int) -> Link:
    """Return the link that explains the all-reduces that a doctor or a profile has timed between so many processes."""
    small, large = measured["all_reduce"]
    by_tree = measured.get("by_tree", False)
    rounds = 2 * math.ceil(math.log2(processes)) if by_tree else 2 * (processes - 1)
    latency = small["milliseconds"] / 1e3 / rounds
    seconds = max(large["milliseconds"] / 1e3 - rounds * latency, 1e-6)
    return Link(latency, rounds / (1 if by_tree else processes) * large["bytes"] / seconds)


def time_of(samples: float, measured: Sequence[tuple[int, float]]) -> float:
    """Return what a step of one process takes with so many samples, from steps that were measured: (samples, time) of each.

    It lies on the straight line through the two nearest, as large batches may take longer for each sample than small ones.
    Below the smallest batch, a step takes its share of it at least.
    """
    known = sorted(measured)
    share = known[0][1] * samples / known[0][0]
    if len(known) == 1:
        return share
    place = min(max(bisect(known, (samples,)), 1), len(known) - 1)
    (fewer, before), (more, after) = known[place - 1 : place + 1]
    found = before + (after - before) * (samples - fewer) / (more - fewer)
    return max(found, share) if samples < fewer else found


def predict(link: Link, alone: Sequence[tuple[int, float]], size: float, batch_size: int) -> Iterator[Predicted]:
    """Yield what a step takes in larger and larger worlds, if nothing of the exchange is hidden by the backward pass.

    Args:
        alone: steps of one process: its samples, and the seconds that they take.
        size: bytes of the gradients.
        batch_size: samples of a step, over all processes.
    """
    for processes in PREDICTED:
        if processes > batch_size:
            return
        computing = time_of(batch_size / processes, alone)
        exchanges = (link.ring(size, processes), link.tree(size, processes), link.master(size, processes))
        yield Predicted(processes, batch_size, *(1e3 * (computing + exchange) for exchange in exchanges))


def where_it_stops_paying(predicted: Sequence[Predicted], by_tree: bool) -> str:
    """Return one sentence: how many processes are worth it, if gradients go up a tree, or else around a ring."""
    said = f"predicted for batches of {predicted[0].batch_size}, each process with a core of its own: adding processes"
    steps = [(row.processes, row.tree_ms if by_tree else row.ring_ms) for row in predicted]
    for (processes, step), (more, next_step) in pairwise(steps):
        gain = step / next_step - 1
        if gain < PAYS:
            what = f"gain {gain:.0%}" if gain > 0 else f"take {next_step / step - 1:.0%} longer"
            return f"{said} stops paying at {processes}: {more} would {what}"
    return f"{said} pays up to {predicted[-1].processes} at least"
