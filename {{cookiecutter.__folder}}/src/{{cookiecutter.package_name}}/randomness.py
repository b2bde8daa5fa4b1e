"""Random numbers that follow from (seed, rank, step), or from (seed, epoch, index of a sample), and from nothing else.

So they differ between ranks, steps and samples, but are the same whenever a run resumes and, for samples, whichever
process reads them. No state of a generator has to be saved.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .distributed import hardware

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
CPU = torch.device("cpu")


def mix(number: Any) -> Any:
    """Return 64 bits that each depend on all bits of ``number``, an int or a uint64 array: the end of SplitMix64.

    From Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def stream(*numbers: int) -> int:
    """Return a seed of 64 bits for a sequence of numbers, such as (seed, rank, step)."""
    result = 0
    for number in numbers:
        result = mix((result + number * GOLDEN + GOLDEN) & MASK)
    return int(result)


def sample_seeds(seed: int, epoch: int, indices: list[int]) -> npt.NDArray[np.int64]:
    """Return a seed for each sample of an epoch, (len(indices),), from 0 on."""
    numbers = np.array(indices, np.uint64) * np.uint64(GOLDEN) + np.uint64(stream(seed, epoch))
    return np.asarray(mix(numbers) >> 1, np.int64)


def normal(seeds: Tensor, size: int) -> Tensor:
    """Return ``size`` standard normal numbers for each of the seeds (samples,), as float32 (samples, size)."""
    numbers = seeds.numpy().astype(np.uint64)[:, None] + np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    # In the middle of one of 2^24 equal parts between -1 and 1.
    uniform = ((mix(numbers) >> np.uint64(40)).astype(np.float64) + 0.5) / 2**23 - 1
    return (torch.erfinv(torch.from_numpy(uniform)) * 2**0.5).float()


def seed_samples(seed: int) -> None:
    """Seed what a dataset may draw from: the generators of python, numpy and torch's CPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed looks for every kind of device, which takes a hundred times longer.
    torch.default_generator.manual_seed(seed)


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed what one step of one rank may draw from: the generators of python, numpy, torch and its device."""
    number = stream(seed, rank, step)
    seed_samples(number)
    hardware.seed(number)


def has_drawn(device: torch.device, seed: int, rank: int, step: int) -> bool:
    """Tell whether somebody has drawn since ``seed_step``, from one of the generators that it seeds."""
    found = _first_draws(CPU, device)
    seed_step(seed, rank, step)
    return found != _first_draws(CPU, device)


def watch_draws() -> None:
    """Seed the generators of python, numpy and torch so that ``have_been_used`` can tell whether somebody has drawn."""
    seed_samples(0)


@contextmanager
def initial_seed(number: int) -> Iterator[list[int]]:
    """Let ``torch.initial_seed``, by which people seed other generators, answer ``number`` inside the ``with`` block.

    Yields the answers that it has given.
    """
    answers: list[int] = []

    def answer() -> int:
        answers.append(number)
        return number

    before, torch.initial_seed = torch.initial_seed, answer
    try:
        yield answers
    finally:
        torch.initial_seed = before


def have_been_used() -> bool:
    """Tell whether somebody has drawn, or seeded, since ``watch_draws``."""
    return _first_draws(CPU) != _unused()


def _first_draws(*devices: torch.device) -> tuple[float, ...]:
    return random.random(), float(np.random.random_sample()), *(float(torch.rand((), device=one)) for one in devices)


@cache
def _unused() -> tuple[float, ...]:
    watch_draws()
    return _first_draws(CPU)
