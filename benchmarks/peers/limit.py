"""What no data-parallel training can beat: the steps of a process that trains alone, then one exchange of all gradients.

Both processes take their steps at the same time, as they share the machine; the batches are ready, memory that is freed is
kept, AdamW is fused, and few gradients go up a tree, as in the rendered project. What the backward pass could hide of the exchange is not taken into
account. apart.py leaves out the exchange.
"""

import itertools
import os

import torch
import torch.distributed as dist
from common import LR, read_work, tell_of_epoch
from my_ddl_project.distributed.backend import FEW_BYTES, add_by_tree
from my_ddl_project.host_memory import keep_freed_memory
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main(exchanges: bool = True) -> None:
    """Compute the steps of an epoch, then exchange as often, without end."""
    keep_freed_memory()
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    work = read_work(dist.get_world_size())
    loader = DataLoader(work.train, work.share, drop_last=True)
    steps = len(loader) // dist.get_world_size()
    batches = list(itertools.islice(loader, 8))
    optimizer = torch.optim.AdamW(work.model.parameters(), LR, fused=True)
    work.model.train()
    gradients = torch.zeros(sum(parameter.numel() for parameter in work.model.parameters()))
    by_tree = dist.get_backend() == "gloo" and gradients.nbytes <= FEW_BYTES
    exchange = add_by_tree if by_tree else dist.all_reduce
    for epoch in itertools.count():
        for number in range(steps):
            batch, targets = batches[number % len(batches)]
            optimizer.zero_grad()
            cross_entropy(work.model(batch), targets).backward()
            optimizer.step()
        for _ in range(steps if exchanges else 1):
            exchange(gradients)
        if dist.get_rank() == 0:
            tell_of_epoch(epoch + 1, work)


if __name__ == "__main__":
    main()
