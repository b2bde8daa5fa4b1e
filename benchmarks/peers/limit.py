"""An upper bound for loops that communicate after they compute: each process trains alone, then all-reduces as often.

Both processes compute at the same time, because they share the machine. Batches are ready, freed memory is kept, and AdamW is
fused. A backward pass that overlaps with its all-reduce can be faster.
"""

import itertools
import os

import torch
import torch.distributed as dist
from common import LR, print_lap, read_work
from my_ddl_project.runtime.process.start import keep_freed_memory
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main() -> None:
    """Compute the steps of an epoch, then all-reduce as often, without end."""
    keep_freed_memory()
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    work = read_work(dist.get_world_size())
    loader = DataLoader(work.train, work.share, drop_last=True)
    steps = len(loader) // dist.get_world_size()
    batches = list(itertools.islice(loader, 8))
    optimizer = torch.optim.AdamW(work.model.parameters(), LR, fused=True)
    work.model.train()
    gradients = torch.zeros(sum(parameter.numel() for parameter in work.model.parameters()))
    for epoch in itertools.count():
        for number in range(steps):
            batch, targets = batches[number % len(batches)]
            optimizer.zero_grad()
            cross_entropy(work.model(batch), targets).backward()
            optimizer.step()
        for _ in range(steps):
            dist.all_reduce(gradients)
        if dist.get_rank() == 0:
            print_lap(epoch + 1, work)


if __name__ == "__main__":
    main()
