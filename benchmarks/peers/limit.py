"""What no data-parallel training can beat: the steps of a process that trains alone, then one exchange of all gradients.

Both processes take their steps at the same time, as they share the machine; the batches are ready. What the backward pass
could hide of the exchange is not taken into account. apart.py leaves out the exchange.
"""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import LR, read_work
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

SECONDS = 4.0


def main(exchanges: bool = True) -> None:
    """Print the samples per second of all processes."""
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    processes = dist.get_world_size()
    work = read_work(processes)
    loader = iter(DataLoader(work.train, work.share, shuffle=True, drop_last=True))
    batches = [next(loader) for _ in range(min(8, len(loader)))]
    optimizer = torch.optim.AdamW(work.model.parameters(), LR)
    work.model.train()

    def step(number: int) -> None:
        batch, targets = batches[number % len(batches)]
        optimizer.zero_grad()
        cross_entropy(work.model(batch), targets).backward()
        optimizer.step()

    gradients = torch.zeros(sum(parameter.numel() for parameter in work.model.parameters()))
    compute = seconds_of(step)
    exchange = seconds_of(lambda number: dist.all_reduce(gradients)) if exchanges else 0.0
    if dist.get_rank() == 0:
        print(f"{1e3 * compute:.3g} ms to compute, {1e3 * exchange:.3g} ms to exchange")
        print(work.share * processes / (compute + exchange))
    dist.destroy_process_group()


def seconds_of(action: Callable[[int], object]) -> float:
    """Return how long it takes in the mean, in both processes for equally many times."""
    for number in range(3):
        action(number)
    dist.barrier()
    started = time.perf_counter()
    action(0)
    times = torch.tensor(SECONDS / max(time.perf_counter() - started, 1e-5))
    dist.all_reduce(times, dist.ReduceOp.MIN)
    count = max(int(times), 3)
    dist.barrier()
    started = time.perf_counter()
    for number in range(count):
        action(number)
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    main()
