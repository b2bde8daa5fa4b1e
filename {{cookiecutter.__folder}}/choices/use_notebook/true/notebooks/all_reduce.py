"""Times three ways to all-reduce, between real processes of this machine: ``python3 notebooks/all_reduce.py``.

Prints a line of JSON for each number of processes, way and size. The notebook starts this file, because processes that
multiprocessing starts must import their function.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

TIMEOUT = timedelta(seconds=60)
REPEATS = 5


class Link:
    """Sends to and receives from other ranks; counts the bytes of both."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.bytes = 0

    def send(self, numbers: Tensor, rank: int) -> Any:
        """Start to send; wait for the returned work before changing the numbers."""
        self.bytes += numbers.nbytes
        return dist.isend(numbers, rank)

    def receive(self, numbers: Tensor, rank: int) -> None:
        """Receive into a tensor."""
        self.bytes += numbers.nbytes
        dist.recv(numbers, rank)


def central(numbers: Tensor, link: Link) -> None:
    """Rank 0 receives the numbers of all others, adds them up, and sends the sum to each."""
    if link.rank:
        link.send(numbers, 0).wait()
        link.receive(numbers, 0)
        return
    received = torch.empty_like(numbers)
    for rank in range(1, link.size):
        link.receive(received, rank)
        numbers += received
    for rank in range(1, link.size):
        link.send(numbers, rank).wait()


def ring(numbers: Tensor, link: Link) -> None:
    """Each rank sends one part at a time to the next rank, and receives another from the previous one."""
    parts = numbers.tensor_split(link.size)
    received = torch.empty_like(parts[0])
    following, previous = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    # Reduce-scatter: the sum of each part grows on its way around the ring.
    for step in range(link.size - 1):
        part = parts[(link.rank - step - 1) % link.size]
        sending = link.send(parts[(link.rank - step) % link.size], following)
        link.receive(received[: len(part)], previous)
        part += received[: len(part)]
        sending.wait()
    # All-gather: each sum goes around once more.
    for step in range(link.size - 1):
        sending = link.send(parts[(link.rank - step + 1) % link.size], following)
        link.receive(parts[(link.rank - step) % link.size], previous)
        sending.wait()


def library(numbers: Tensor, link: Link) -> None:
    """The all-reduce of torch.distributed."""
    dist.all_reduce(numbers)


def measure(way: Callable[[Tensor, Link], None], size: int) -> dict[str, Any]:
    """Return the time of an all-reduce of ``size`` bytes, and the bytes of each rank. Every rank must call it.

    Raises:
        RuntimeError: if a sum is wrong.
    """
    # Integers, whose sums do not depend on the order.
    mine = (torch.arange(size // 4) % 1000 + dist.get_rank()).float()
    expected = mine.clone()
    dist.all_reduce(expected)
    milliseconds, link = [], Link()
    # The first repetition allocates memory and connects.
    for _ in range(REPEATS + 1):
        numbers, link = mine.clone(), Link()
        dist.barrier()
        started = time.perf_counter()
        way(numbers, link)
        milliseconds.append((time.perf_counter() - started) * 1e3)
        if not torch.equal(numbers, expected):
            raise RuntimeError(f"{way.__name__}: wrong sum on rank {link.rank}")
    everyones: list[Any] = [None] * link.size
    dist.all_gather_object(everyones, (milliseconds[1:], link.bytes))
    times, sent = zip(*everyones, strict=True)
    # An all-reduce is finished when its last rank is.
    record = {"processes": link.size, "way": way.__name__, "bytes": size}
    return {**record, "milliseconds": median(map(max, zip(*times, strict=True))), "bytes_of_ranks": sent}


def run(rank: int, processes: int, sizes: list[int], store: str) -> None:
    """Join the other processes and measure each way with each size; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes, timeout=TIMEOUT)
    try:
        for size in sizes:
            for way in (central, ring, library):
                record = measure(way, size)
                if rank == 0:
                    print(json.dumps(record), flush=True)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Measure with each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 2**20])
    given = parser.parse_args()
    # The loopback interface, whatever address the host name has.
    for name in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    # One process imports torch, and the others are forked from it.
    multiprocessing.set_forkserver_preload(["torch.distributed"])
    for processes in given.processes:
        with tempfile.TemporaryDirectory() as folder:
            start_processes(
                run, (processes, given.bytes, f"{folder}/store"), nprocs=processes, start_method="forkserver"
            )


if __name__ == "__main__":
    main()
