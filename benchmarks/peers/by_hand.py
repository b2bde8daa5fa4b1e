"""A plain loop with torch's own DDP, sampler and DataLoader, as in its tutorial."""

import itertools
from collections.abc import Iterable

import torch
import torch.distributed as dist
from common import LR, print_lap, print_step, read_work
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train without end."""
    dist.init_process_group("gloo")
    work = read_work(dist.get_world_size())
    writes = dist.get_rank() == 0
    sampler: DistributedSampler = DistributedSampler(work.train, shuffle=True)
    loader = DataLoader(work.train, work.share, sampler=sampler, drop_last=True, **work.loader)
    val_sampler: DistributedSampler = DistributedSampler(work.val, shuffle=False)
    val_loader = DataLoader(work.val, 256, sampler=val_sampler, **work.loader)
    model = DistributedDataParallel(work.model)
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    for epoch in itertools.count():
        model.train()
        sampler.set_epoch(epoch)
        for number, (batch, targets) in enumerate(loader):
            optimizer.zero_grad()
            cross_entropy(model(batch), targets).backward()
            optimizer.step()
            if writes and epoch == number == 0:
                print_step()
        if work.evaluates:
            evaluate(model.module, val_loader)
        if writes:
            print_lap(epoch + 1, work)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable) -> tuple[float, float]:
    """Return loss and accuracy over all processes."""
    model.eval()
    totals = torch.zeros(3)
    for batch, targets in batches:
        scores = model(batch)
        right = (scores.argmax(1) == targets).float().mean(dim=tuple(range(1, targets.dim()))).sum()
        totals += torch.stack(
            [cross_entropy(scores, targets) * len(targets), right, torch.tensor(len(targets))]
        )
    dist.all_reduce(totals)
    return float(totals[0] / totals[2]), float(totals[1] / totals[2])


if __name__ == "__main__":
    main()
