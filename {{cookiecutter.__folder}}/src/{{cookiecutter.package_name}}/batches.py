"""Which process gets which samples when, and how they become batches."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, default_collate

from .checks import batch_check, require
from .early_signals import ignore_stop_signals
from .errors import SampleError, UsageError
from .randomness import have_been_used, initial_seed, mix, sample_seeds, seed_samples, stream, watch_draws
from .task import data as task_data

# A fixed size, so that each evaluation batch holds the same samples on every world size; a task may set its own.
EVALUATION_BATCH_SIZE: int = getattr(task_data, "EVALUATION_BATCH_SIZE", 256)
# How many places of an epoch's order are looked up at a time.
BLOCK = 2**14
# How long loader processes may continue what they do when the training has ended.
END_S = 1.0
ROUNDS = 6


class Share(NamedTuple):
    """One rank's samples of one step."""

    epoch: int
    """-1 in an evaluation, which is the same each time"""
    indices: list[int]


class TrainingBatches:
    """One rank's share of every global batch; what it yields depends on nothing but the arguments below.

    Step ``s`` of epoch ``e``, both counted from 0, is the same set of samples on every world size, cut into equal
    slices: the mean of the slices' gradients is the gradient of the global batch. The samples that do not fill a last
    batch are left out of that epoch, other ones each time.

    Args:
        size: samples in the training set.
        batch_size: samples of one step, over all ranks.

    Raises:
        UsageError: if the global batch is not divisible by the world size, or is larger than the training set.
    """

    def __init__(self, size: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        if size < 1:
            raise UsageError("the training set is empty: does load of task/data.py look in the right place?")
        require([batch_check(batch_size, [world_size])])
        if batch_size > size:
            raise UsageError(f"data.batch_size {batch_size} is larger than the training set: choose at most {size}")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.share = batch_size // world_size
        self.offset = rank * self.share
        self.epoch = self.first_step = 0

    def __len__(self) -> int:
        return self.size // self.batch_size

    def state_dict(self) -> dict[str, int]:
        """Return what belongs to a checkpoint: what a number of steps stands for."""
        return {"samples": self.size, "batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take what ``state_dict`` returned.

        Raises:
            UsageError: if it is that of other batches.
        """
        _refuse_others("training", self.state_dict(), state)

    def start_at(self, iteration: int) -> None:
        """Let the next pass begin after ``iteration`` steps of the whole training."""
        self.epoch, self.first_step = divmod(iteration, len(self))

    def __iter__(self) -> Iterator[Share]:
        epoch, together = self.epoch, max(BLOCK // self.share, 1)
        for first in range(self.first_step, len(self), together):
            steps = np.arange(first, min(first + together, len(self)))
            places = steps[:, None] * self.batch_size + self.offset + np.arange(self.share)
            for indices in samples_at(places, self.size, self.seed, epoch).tolist():
                yield Share(epoch, indices)


class EvaluationBatches:
    """Batches of fixed content, dealt to the ranks in turn; no sample is repeated to even out the shares.

    Because every batch is whole on one rank, what a model answers is the same on every world size. Where there are
    fewer batches than ranks, the last ranks get none.

    Raises:
        UsageError: if there is no sample at all.
    """

    seed = 0

    def __init__(self, size: int, rank: int, world_size: int) -> None:
        if size < 1:
            raise UsageError("the validation set is empty: keep some samples for it")
        self.reach_every_rank = size > (world_size - 1) * EVALUATION_BATCH_SIZE
        self.size = size
        self.starts = range(rank * EVALUATION_BATCH_SIZE, size, world_size * EVALUATION_BATCH_SIZE)
        self.most = len(range(0, size, world_size * EVALUATION_BATCH_SIZE))

    def __len__(self) -> int:
        return len(self.starts)

    def state_dict(self) -> dict[str, int]:
        """Return what belongs to a checkpoint: what its evaluations were of."""
        return {"samples": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take what ``state_dict`` returned.

        Raises:
            UsageError: if it is that of other batches.
        """
        _refuse_others("validation", self.state_dict(), state)

    def __iter__(self) -> Iterator[Share]:
        for start in self.starts:
            yield Share(-1, list(range(start, min(start + EVALUATION_BATCH_SIZE, self.size))))


def _refuse_others(part: str, now: dict[str, int], then: dict[str, int]) -> None:
    """Raise UsageError if the batches of a part of the data are not as they were."""
    for name, value in now.items():
        if then[name] != value:
            what = f"{part} samples" if name == "samples" else "samples in a batch"
            raise UsageError(
                f"the checkpoint to resume from is of a training with {then[name]} {what}, and now there are {value}: keep the "
                "data, data.batch_size and the task's settings, or begin anew in another train.run_dir"
            )


def samples_at(places: npt.NDArray[np.int64], size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the samples at these places of an epoch's order, each of which is a number below ``size``.

    It takes memory and time for these places only. A Feistel network permutes the numbers of an even number of bits; a
    result of ``size`` or more is permuted again until it is less (Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002).
    """
    # Not too few, where so simple a network would not shuffle well.
    half = max(size.bit_length() + 1, 8) // 2
    mask = 2**half - 1
    keys = [stream(seed, epoch, number) for number in range(ROUNDS)]

    def permute(numbers: Any) -> Any:
        left, right = numbers >> half, numbers & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) & mask)
        return (left << half) | right

    # Of few numbers, to permute all once and look them up is faster: many a result is permuted ten times.
    few = 4**half <= BLOCK
    then = permute(np.arange(4**half, dtype=np.uint64)).__getitem__ if few else permute
    result: npt.NDArray[np.uint64] = then(places.astype(np.uint64))
    while (outside := result >= size).any():
        result[outside] = then(result[outside])
    return result.astype(np.int64)


def create_loader(dataset: Any, batches: TrainingBatches | EvaluationBatches, num_workers: int) -> DataLoader[Any]:
    """Return what reads ``batches`` of ``dataset``, with ``num_workers`` processes beside this one.

    The dataset has a length and ``__getitem__``, or ``__getitems__`` for a list of indices. What that returns as a list
    are samples, which the task's own ``collate`` or that of torch makes a batch of; anything else is a batch already.
    """
    reader: Any = Reader(dataset, batches.seed)
    shares: Any = batches
    processes: dict[str, Any] = {}
    if num_workers:
        # One process imports torch, and all loader processes begin as copies of it. Copies of this process itself would
        # inherit the threads and sockets of the process group.
        multiprocessing.set_forkserver_preload([f"{__package__}.loader_server"])
        processes = {
            "num_workers": num_workers,
            "persistent_workers": True,
            "multiprocessing_context": "forkserver",
            "worker_init_fn": live_as_long_as_the_training,
        }
        Finalize(None, kill_loader_processes, exitpriority=0)
    pin_memory = torch.cuda.is_available()
    return DataLoader(reader, batch_sampler=shares, collate_fn=_as_it_is, pin_memory=pin_memory, **processes)


def live_as_long_as_the_training(worker: int) -> None:
    """Let a loader process ignore stop signals, after which the training still needs it, but end when the training ends.

    Torch looks at the process that it was copied from, which is not the training and does not end before its copies.
    """
    ignore_stop_signals()

    def end_with(training: Any) -> None:
        training.join()
        os._exit(1)

    threading.Thread(target=end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def kill_loader_processes() -> None:
    """Kill the loader processes that nobody has closed, before Python, at its end, waits for them.

    It would send them a signal that they ignore, and wait for ever: for those of a loader that could not start them all, or
    of one that was read outside ``closing``.
    """
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


@contextmanager
def closing(*loaders: DataLoader[Any]) -> Iterator[None]:
    """End the processes of the loaders after the ``with`` block: in order, so that they clean up, or else by force.

    Left to the garbage collector, which may close their queues first, torch would wait five seconds for each of them, and
    then send a signal, which they ignore.
    """
    try:
        yield
    finally:
        for loader in loaders:
            iterator: Any = getattr(loader, "_iterator", None)
            # Not by its truth: that of a rank without a batch has no length, but processes.
            if loader.num_workers and iterator is not None:
                with killing(iterator._workers, after_s=END_S):
                    iterator._shutdown_workers()


@contextmanager
def killing(processes: list[Any], after_s: float) -> Iterator[None]:
    """Kill those of the processes that live so long inside the ``with`` block."""

    def kill() -> None:
        for process in processes:
            process.kill()

    late = threading.Timer(after_s, kill)
    late.start()
    try:
        yield
    finally:
        late.cancel()


class Reader:
    """Reads batches of a dataset, so that its random numbers depend on the seed, the epoch and a sample's index alone.

    They are the same on every world size, with any number of loader processes, and after a resume, if the dataset draws
    them from the generators of python, numpy or torch for each sample, or takes a seed for each: ``__getitems__(indices,
    seeds)``, where ``seeds`` is an int64 tensor (len(indices),) of numbers from 0 on. What the task's own ``collate``
    draws depends on the seed, the epoch and the first sample of the batch.

    Raises:
        SampleError: if a dataset without seeds draws numbers for a whole batch, or raises a UsageError itself, or if a batch lacks
            samples.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.seed = seed
        # A part of a dataset would not hand on the seeds.
        self.parts = []
        while type(dataset) is Subset:
            self.parts.append(dataset.indices)
            dataset = dataset.dataset
        self.dataset = dataset
        self.fetch_many = getattr(dataset, "__getitems__", None)
        self.takes_seeds = self.fetch_many is not None and len(inspect.signature(self.fetch_many).parameters) > 1
        self.draws = False
        self.epoch = -1
        self.collate = getattr(task_data, "collate", default_collate)

    def __getitems__(self, share: Share) -> Any:
        try:
            samples = self.read(share)
            batch = self.join(samples, share) if isinstance(samples, list) else samples
            refuse_fewer(batch, len(share.indices), type(self.dataset).__name__)
            return batch
        except UsageError as error:
            raise SampleError(str(error)) from None

    def read(self, share: Share) -> Any:
        """Return a list of samples, or a batch, with the random numbers that belong to them."""
        epoch, indices = share
        if epoch not in (-1, self.epoch) and hasattr(self.dataset, "set_epoch"):
            self.epoch = epoch
            self.dataset.set_epoch(epoch)
        seeds = partial(sample_seeds, self.seed, epoch, indices)
        for part in self.parts:
            indices = [part[index] for index in indices]
        if self.takes_seeds:
            return self.fetch(indices, torch.from_numpy(seeds()))
        if not self.draws:
            # To seed the generators for each sample takes longer than many datasets take to answer: only if need be.
            watch_draws()
            with initial_seed(stream(self.seed, epoch, indices[0])) as asked:
                samples = self.fetch(indices)
            if not asked and not have_been_used():
                return samples
            if not isinstance(samples, list):
                raise UsageError(
                    f"{type(self.dataset).__name__}.__getitems__ draws random numbers for a whole batch, which depend "
                    "on the number of processes: let it take (indices, seeds), and draw from one seed for each sample"
                )
            self.draws = True
        return self.fetch_one_by_one(indices, seeds())

    def join(self, samples: list[Any], share: Share) -> Any:
        """Return a batch of the samples.

        Raises:
            UsageError: if they make none.
        """
        if any(sample is None for sample in samples):
            raise UsageError(
                f"{type(self.dataset).__name__} answers None for a sample, without which the batches of the processes would differ "
                "in size: let load of task/data.py leave such samples out of the data set"
            )
        if self.collate is not default_collate:
            seed_samples(stream(self.seed, share.epoch, share.indices[0]))
            return self.collate(samples)
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"samples do not make a batch ({reason}): write a function collate in task/data.py"
            ) from None

    def fetch(self, indices: list[int], *seeds: Tensor) -> Any:
        """Return a list of samples, or a batch."""
        if self.fetch_many:
            try:
                return self.fetch_many(indices, *seeds)
            except Exception as error:
                self.add_place(error, f".__getitems__({indices})")
                raise
        samples = []
        for index in indices:
            try:
                samples.append(self.dataset[index])
            except Exception as error:
                self.add_place(error, f"[{index}]")
                raise
        return samples

    def add_place(self, error: Exception, place: str) -> None:
        """Let an error say, below its traceback, which samples the dataset was asked for; Python 3.10 has no notes."""
        if hasattr(error, "add_note"):
            error.add_note(f"in {type(self.dataset).__name__}{place}")

    def fetch_one_by_one(self, indices: list[int], seeds: npt.NDArray[np.int64]) -> list[Any]:
        """Return a list of samples, each with random numbers of its own."""
        samples = []
        for index, seed in zip(indices, seeds.tolist(), strict=True):
            seed_samples(seed)
            samples += self.fetch([index])
        return samples


def refuse_fewer(batch: Any, wanted: int, dataset: str) -> None:
    """Refuse a batch that lacks samples: a mean over it would count for as many as over the batches of other processes.

    How many it has is what all of its tensors agree on; where they do not, as in a list of samples of many sizes, nobody can tell.

    Raises:
        UsageError: if it has fewer than ``wanted``.
    """
    lengths: set[int] = set()
    second: set[tuple[int, ...]] = set()
    parts = [batch]
    while parts:
        part = parts.pop()
        if isinstance(part, Tensor) and part.dim():
            if (length := len(part)) == wanted:
                return
            lengths.add(length)
            second.add(tuple(part.shape[1:2]))
        elif isinstance(part, Mapping):
            parts += part.values()
        elif isinstance(part, list | tuple):
            if len(part) == wanted:
                return
            parts += part
    # In a sequence of words, the samples may come second.
    if len(lengths) == 1 and max(lengths) < wanted and second != {(wanted,)}:
        raise UsageError(
            f"a batch of {dataset} has {max(lengths)} of its {wanted} samples, so that the batches of the processes would differ in size: "
            "leave samples out in load of task/data.py, not in collate, and let the first dimension of each tensor count them"
        )


def _as_it_is(batch: Any) -> Any:
    return batch
