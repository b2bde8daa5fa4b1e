"""The loop that an expert tunes: fused AdamW, gradients as views of DDP's buckets, batches indexed at once, no ``.item()``."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from by_hand import evaluate
from common import LR, Work, print_lap, print_step, read_work
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Batches:
    """This rank's batches of an epoch: indexed at once if the data are in memory, else read by a DataLoader."""

    def __init__(self, work: Work) -> None:
        self.work, self.data = work, work.train
        self.sampler: Any = DistributedSampler(self.data, shuffle=True)
        self.loader = DataLoader(self.data, work.share, sampler=self.sampler, drop_last=True, **work.loader)

    def of_epoch(self, epoch: int) -> Iterator[Any]:
        """Yield inputs and targets."""
        if not isinstance(self.data, TensorDataset):
            self.sampler.set_epoch(epoch)
            yield from self.loader
            return
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(epoch))
        mine, share = order[dist.get_rank() :: dist.get_world_size()], self.work.share
        # The same number of steps on every rank.
        steps = len(order) // dist.get_world_size() // share
        for indices in mine[: steps * share].split(share):
            yield tuple(tensor[indices] for tensor in self.data.tensors)


def val_batches(work: Work) -> list[tuple[Tensor, ...]]:
    """Return this rank's validation batches, as views."""
    assert isinstance(work.val, TensorDataset)
    parts = [tensor.chunk(dist.get_world_size())[dist.get_rank()].split(256) for tensor in work.val.tensors]
    return [*zip(*parts, strict=True)]


def main() -> None:
    """Train without end."""
    dist.init_process_group("gloo")
    work = read_work(dist.get_world_size())
    writes = dist.get_rank() == 0
    batches = Batches(work)
    model = DistributedDataParallel(work.model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), LR, fused=True)
    for epoch in itertools.count():
        model.train()
        for number, (batch, targets) in enumerate(batches.of_epoch(epoch)):
            optimizer.zero_grad()
            cross_entropy(model(batch), targets).backward()
            optimizer.step()
            if writes and epoch == number == 0:
                print_step()
        if work.evaluates:
            evaluate(model.module, val_batches(work))
        if writes:
            print_lap(epoch + 1, work)


if __name__ == "__main__":
    main()
