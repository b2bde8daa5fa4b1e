"""All-reduce in three ways, by real processes of this machine, each counted and timed; the notebook beside it draws that.

python3 notebooks/all_reduce.py --processes 2,4 --bytes 4096,1048576

Prints a JSON object for each number of processes, way and size. Notebooks start this file instead of holding it, because a
process that multiprocessing starts has to find its functions in a file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Seconds after which a process that waits for another gives up, and after which all of them are ended.
TIMEOUT_S = 60
LIMIT_S = 120
REPEATS = 5
# Where the bytes of a TCP connection stand in what Linux tells of it, struct tcp_info of linux/tcp.h: those that were
# received, sent, and sent once more; and how long it is up to there.
RECEIVED_AT, SENT_AT, SENT_AGAIN_AT, TOLD = 128, 200, 208, 216


class Wire:
    """Sends numbers to other ranks and receives theirs; counts the messages and the bytes of both."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.messages = self.bytes = 0

    def send(self, numbers: Tensor, rank: int) -> Any:
        """Begin to send; wait for what this returns before the numbers are changed."""
        self._count(numbers)
        return dist.isend(numbers, rank)

    def receive(self, numbers: Tensor, rank: int) -> None:
        """Wait for numbers, and write them into a tensor."""
        self._count(numbers)
        dist.recv(numbers, rank)

    def _count(self, numbers: Tensor) -> None:
        self.messages += 1
        self.bytes += numbers.nbytes


def master(numbers: Tensor, wire: Wire) -> None:
    """Rank 0 receives the numbers of all others, adds them up, and sends the sum to each."""
    if wire.rank:
        wire.send(numbers, 0).wait()
        wire.receive(numbers, 0)
        return
    received = torch.empty_like(numbers)
    for rank in range(1, wire.size):
        wire.receive(received, rank)
        numbers += received
    for rank in range(1, wire.size):
        wire.send(numbers, rank).wait()


def ring(numbers: Tensor, wire: Wire) -> None:
    """Each rank sends to the next one only, and one part of the numbers at a time, while it receives another."""
    parts = numbers.tensor_split(wire.size)
    received = torch.empty_like(parts[0])
    after, before = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    # First a reduce-scatter: the sum of each part grows on its way around the ring, and is complete at its end.
    for step in range(wire.size - 1):
        grows = parts[(wire.rank - step - 1) % wire.size]
        sending = wire.send(parts[(wire.rank - step) % wire.size], after)
        wire.receive(received[: len(grows)], before)
        grows += received[: len(grows)]
        sending.wait()
    # Then an all-gather: each complete part goes around once more.
    for step in range(wire.size - 1):
        sending = wire.send(parts[(wire.rank - step + 1) % wire.size], after)
        wire.receive(parts[(wire.rank - step) % wire.size], before)
        sending.wait()


def library(numbers: Tensor, wire: Wire) -> None:
    """What torch.distributed itself does."""
    dist.all_reduce(numbers)


WAYS: tuple[Callable[[Tensor, Wire], None], ...] = (master, ring, library)


def bytes_of_connections() -> int | None:
    """Return what the kernel has counted: bytes sent and received over TCP by this process; None where it does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    total = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            is_socket = os.readlink(file).startswith("socket:")
        except OSError:  # that of the folder itself, which is closed by now
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(int(file.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TOLD)
                    if len(told) < TOLD:
                        return None
                    received, sent, again = (
                        struct.unpack_from("=Q", told, place)[0] for place in (RECEIVED_AT, SENT_AT, SENT_AGAIN_AT)
                    )
                    total += received + sent - again
    return total


def measure(way: Callable[[Tensor, Wire], None], size: int) -> dict[str, Any]:
    """Return what one all-reduce of ``size`` bytes costs each rank; every rank must call it.

    Raises:
        RuntimeError: if a rank has another sum than the library's.
    """
    rank, processes = dist.get_rank(), dist.get_world_size()
    # Whole numbers, whose sums are exact in any order.
    mine = (torch.arange(size // 4) % 1000 + rank).float()
    expected = mine.clone()
    dist.all_reduce(expected)
    wire = Wire()
    milliseconds = []
    counted = None
    # One more than is timed: in the first, memory is reserved and connections are made.
    for repeat in range(REPEATS + 1):
        numbers = mine.clone()
        wire = Wire()
        dist.barrier()
        before = bytes_of_connections()
        started = time.perf_counter()
        way(numbers, wire)
        milliseconds.append((time.perf_counter() - started) * 1e3)
        # A message is sent, for the library, as soon as the kernel has it: it counts what has left when all have it.
        dist.barrier()
        after = bytes_of_connections()
        counted = None if before is None or after is None else after - before
        if not torch.equal(numbers, expected):
            raise RuntimeError(f"{way.__name__}: rank {rank} has a wrong sum in repeat {repeat}")
    everyones: list[Any] = [None] * processes
    dist.all_gather_object(everyones, (milliseconds[1:], wire.messages, wire.bytes, counted))
    times, messages, sizes, kernels = zip(*everyones, strict=True)
    return {
        "processes": processes,
        "way": way.__name__,
        "bytes": size,
        # An all-reduce has ended when its last rank has.
        "milliseconds": median(map(max, zip(*times, strict=True))),
        # Of each rank, sent and received; the library does not tell its messages.
        "messages": list(messages) if way is not library else None,
        "bytes_of_ranks": list(sizes) if way is not library else None,
        "bytes_of_connections": list(kernels) if None not in kernels else None,
    }


def run(rank: int, processes: int, sizes: list[int], store: str) -> None:
    """Be one of the processes: join the others, measure, and let rank 0 print what was found."""
    # More threads than cores wait for each other.
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes, timeout=limit)
    try:
        for size in sizes:
            for way in WAYS:
                record = measure(way, size)
                if rank == 0:
                    print(json.dumps(record), flush=True)
    finally:
        dist.destroy_process_group()


def main() -> int:
    """Start the processes, so many at a time as each number says; return 0 if all of them have ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="2,4", help="numbers of processes, such as 2,4,8")
    parser.add_argument("--bytes", default="4096,1048576", help="sizes of what is added up, such as 4096,1048576")
    given = parser.parse_args()
    sizes = [int(size) for size in given.bytes.split(",")]
    # They speak over this machine's own interface, whatever its host name stands for.
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    # One process imports torch, and the others begin as copies of it: that takes seconds for each.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    deadline = time.monotonic() + LIMIT_S
    for number in map(int, given.processes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                context.Process(target=run, args=(rank, number, sizes, f"{folder}/store"), daemon=True)
                for rank in range(number)
            ]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(max(deadline - time.monotonic(), 0))
            late = [rank for rank in ranks if rank.is_alive()]
            for rank in late:
                rank.kill()
                rank.join()
            if late or any(rank.exitcode for rank in ranks):
                why = f"were not ready after {LIMIT_S} s" if late else "failed"
                print(f"error: {number} processes {why}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
