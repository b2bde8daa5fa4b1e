"""Sharding of samples over ranks, and seeds of random numbers.

Both are pure functions of (seed, epoch, step, rank): nothing has to be saved, and a resumed run continues exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..process import hardware
from ..report import UsageError

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
Order = Callable[[torch.Generator, int], torch.Tensor]


class Share(NamedTuple):
    """One rank's samples of one step."""

    epoch: int
    """-1 in an evaluation, which is the same each time"""
    indices: list[int]


class TrainBatches:
    """One rank's share of every global batch.

    Step ``s`` of epoch ``e`` holds the same samples on every world size, cut into equal slices, so the mean of the
    slices' gradients is the gradient of the global batch. Samples that do not fill a last batch are left out of that
    epoch, different ones each time.

    Args:
        size: samples in the training set.
        batch_size: samples of one step over all ranks.
        order: from a generator and the batch size to the indices of an epoch, instead of a random permutation.

    Raises:
        UsageError: if the global batch is not divisible by the world size or is larger than the training set.
    """

    def __init__(
        self, size: int, batch_size: int, rank: int, world_size: int, seed: int, order: Order | None = None
    ) -> None:
        if size < 1:
            raise UsageError("the training set is empty. Check where load in task/data.py looks for it.")
        if batch_size % world_size:
            lower = max(batch_size // world_size, 1) * world_size
            fix = f"Use {lower} or {lower + world_size}."
            raise UsageError(f"data.batch_size {batch_size} is not divisible by {world_size} processes. {fix}")
        if batch_size > size:
            raise UsageError(f"data.batch_size {batch_size} is larger than the training set. Use at most {size}.")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.order = order or (lambda generator, batch_size: torch.randperm(size, generator=generator))
        self.share = batch_size // world_size
        self.offset = rank * self.share
        self.epoch = self.first_step = 0

    def __len__(self) -> int:
        return self.size // self.batch_size

    def start_at(self, iteration: int) -> None:
        """Make the next pass start after ``iteration`` steps of the whole run."""
        self.epoch, self.first_step = divmod(iteration, len(self))

    def __iter__(self) -> Iterator[Share]:
        epoch = self.epoch
        order = self.order(torch.Generator().manual_seed(stream(self.seed, epoch)), self.batch_size)
        if len(order) < len(self) * self.batch_size:
            raise UsageError(f"order of task/data.py returned {len(order)} of {self.size} indices.", 1)
        for step in range(self.first_step, len(self)):
            first = step * self.batch_size + self.offset
            yield Share(epoch, order[first : first + self.share].tolist())


class EvaluationBatches:
    """Batches of fixed content, assigned to the ranks in turn; no sample is repeated.

    Each batch is whole on one rank, so the model's outputs do not depend on the world size. Every rank runs the same
    number of steps, because a model or a loss may communicate: ranks that have run out repeat a batch, which does not count.

    Raises:
        UsageError: if there is no sample.
    """

    seed = 0

    def __init__(self, size: int, batch_size: int, rank: int, world_size: int) -> None:
        if size < 1:
            raise UsageError("the validation set is empty. Keep some samples for it in load of task/data.py.")
        self.size, self.batch_size = size, batch_size
        self.starts = range(rank * batch_size, size, world_size * batch_size)
        self.sizes = [min(batch_size, size - start) for start in self.starts]
        """samples of each batch that counts"""
        self.steps = len(range(0, size, world_size * batch_size))
        self.reach_every_rank = size > (world_size - 1) * batch_size

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Share]:
        for start in (*self.starts, *[0] * (self.steps - len(self.starts))):
            yield Share(-1, list(range(start, min(start + self.batch_size, self.size))))


def mix(number: Any) -> Any:
    """Return 64 bits that each depend on all bits of ``number``, an int or a uint64 array.

    The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def stream(*numbers: int) -> int:
    """Return a 64-bit seed for a sequence of numbers, such as (seed, rank, step)."""
    result = 0
    for number in numbers:
        result = mix((result + number * GOLDEN + GOLDEN) & MASK)
    return int(result)


def sample_seeds(seed: int, epoch: int, indices: list[int]) -> npt.NDArray[np.int64]:
    """Return a non-negative seed for each sample of an epoch, (len(indices),)."""
    numbers = np.array(indices, np.uint64) * np.uint64(GOLDEN) + np.uint64(stream(seed, epoch))
    return np.asarray(mix(numbers) >> 1, np.int64)


def seed_cpu(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch's CPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed checks for every kind of device, which takes a hundred times longer.
    torch.default_generator.manual_seed(seed)


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed every generator that a step may use, those of the device included."""
    number = stream(seed, rank, step)
    seed_cpu(number)
    hardware.seed(number)


def used_rng(reseed: Callable[[], None], *devices: torch.device) -> bool:
    """Return whether a generator of the CPU or of ``devices`` was used since ``reseed`` was called; calls it again."""
    found = _draw(devices)
    reseed()
    return found != _draw(devices)


def _draw(devices: tuple[torch.device, ...]) -> list[float]:
    numbers = [torch.rand(()), *(torch.rand((), device=device) for device in devices)]
    return [random.random(), float(np.random.random_sample()), *map(float, numbers)]
