"""Which process gets which samples when, and how they become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, default_collate

from .checks import check_batch_size
from .errors import UsageError
from .task import data as task_data

# A fixed size, so that each evaluation batch holds the same samples on every world size; a task may set its own.
EVALUATION_BATCH_SIZE: int = getattr(task_data, "EVALUATION_BATCH_SIZE", 256)


class TrainingBatches:
    """One rank's share of every global batch; what it yields depends on nothing but the arguments below.

    Step ``s`` of epoch ``e`` is the same set of samples on every world size, cut into equal slices: the mean of the
    slices' gradients is the gradient of the global batch. The samples that do not fill a last batch are left out of
    that epoch, other ones each time.

    Args:
        size: samples in the training set.
        batch_size: samples of one step, over all ranks.

    Raises:
        UsageError: if the global batch is not divisible by the world size, or is larger than the training set.
    """

    def __init__(self, size: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        check_batch_size(batch_size, [world_size])
        if batch_size > size:
            raise UsageError(f"data.batch_size {batch_size} is larger than the training set: choose at most {size}")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.share = batch_size // world_size
        self.offset = rank * self.share
        self.epoch = self.first_step = 0

    def __len__(self) -> int:
        return self.size // self.batch_size

    def start_at(self, iteration: int) -> None:
        """Let the next pass begin after ``iteration`` steps of the whole training."""
        self.epoch, self.first_step = divmod(iteration, len(self))

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(self.size, self.seed, self.epoch)
        for step in range(self.first_step, len(self)):
            begin = step * self.batch_size + self.offset
            yield order[begin : begin + self.share].tolist()


class EvaluationBatches:
    """Batches of fixed content, dealt to the ranks in turn; no sample is repeated to even out the shares.

    Because every batch is whole on one rank, what a model answers is the same on every world size. Where there are
    fewer batches than ranks, the last ranks get none.

    Raises:
        UsageError: if there is no sample at all.
    """

    def __init__(self, size: int, rank: int, world_size: int) -> None:
        if size < 1:
            raise UsageError("the validation set is empty: keep some samples for it")
        self.reach_every_rank = size > (world_size - 1) * EVALUATION_BATCH_SIZE
        self.batches = [
            list(range(start, min(start + EVALUATION_BATCH_SIZE, size)))
            for start in range(rank * EVALUATION_BATCH_SIZE, size, world_size * EVALUATION_BATCH_SIZE)
        ]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


@lru_cache(maxsize=2)
def epoch_order(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of all samples in one epoch, (size,), a pure function of the arguments."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator).numpy()


def create_loader(dataset: Any, batches: TrainingBatches | EvaluationBatches, num_workers: int) -> DataLoader[Any]:
    """Return what reads ``batches`` of ``dataset``, with ``num_workers`` processes beside this one.

    The dataset has a length and ``__getitem__``, or ``__getitems__`` for a list of indices. What that returns as a list
    are samples, which the task's own ``collate`` or that of torch makes a batch of; anything else is a batch already.
    """
    collate = getattr(task_data, "collate", default_collate)
    return DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=partial(_to_batch, collate),
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
        # Forked loaders would inherit the threads and sockets of the process group.
        multiprocessing_context="spawn" if num_workers > 0 else None,
    )


def _to_batch(collate: Callable[[list[Any]], Any], samples: Any) -> Any:
    return collate(samples) if isinstance(samples, list) else samples
