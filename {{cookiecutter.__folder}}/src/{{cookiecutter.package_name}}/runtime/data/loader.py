"""DataLoaders whose batches and random numbers do not depend on the number of processes or workers."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset, default_collate
from torch.utils.data._utils import signal_handling

from ..process import STOP_SIGNALS, at_exit, ignore_stop_signals
from ..report import SampleError, UsageError
from . import EvaluationBatches, Share, TrainBatches, sample_seeds, seed_cpu, stream, used_rng

# Seconds that workers get to finish when the run has ended.
END_S = 1.0


def create_loader(
    dataset: Any,
    batches: TrainBatches | EvaluationBatches,
    num_workers: int = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
    timeout_s: float = 0,
) -> DataLoader[Any]:
    """Return a DataLoader of ``batches`` of a dataset.

    Args:
        dataset: has a length and ``__getitem__``, or ``__getitems__`` for a list of indices. If ``__getitems__`` returns
            a list, its items are samples. Anything else is a batch already.
        timeout_s: how long a batch from a worker may take.
    """
    workers: dict[str, Any] = {}
    if num_workers:
        # One server process imports torch, and every worker is forked from it. Forks of this process would inherit the
        # threads and sockets of the process group.
        multiprocessing.set_forkserver_preload([f"{__package__}.worker_server"])
        workers = {
            "num_workers": num_workers,
            "persistent_workers": True,
            "multiprocessing_context": "forkserver",
            "worker_init_fn": end_with_run,
            "timeout": timeout_s,
        }
        Finalize(None, kill_workers, exitpriority=0)
    reader: Any = Reader(dataset, batches.seed, collate)
    sampler: Any = batches
    pin_memory = torch.cuda.is_available()
    loader = DataLoader(reader, batch_sampler=sampler, collate_fn=_unchanged, pin_memory=pin_memory, **workers)
    if num_workers:
        at_exit.append(partial(close_workers, loader))
    return loader


class Reader:
    """Reads batches of a dataset with random numbers that depend on (seed, epoch, sample) alone.

    This holds for datasets that use the generators of Python, NumPy or torch for each sample, and for those that take a
    seed for each: ``__getitems__(indices, seeds)``, where ``seeds`` is an int64 tensor (len(indices),). A ``collate`` of
    the task gets random numbers by (seed, epoch, first sample of the batch).

    Raises:
        SampleError: if a dataset uses random numbers for a whole batch, or a batch lacks samples.
    """

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self.seed, self.collate = seed, collate
        # Subset does not pass seeds on.
        self.subsets = []
        while type(dataset) is Subset:
            self.subsets.append(dataset.indices)
            dataset = dataset.dataset
        self.dataset, self.name = dataset, type(dataset).__name__
        self.fetch_many = getattr(dataset, "__getitems__", None)
        self.takes_seeds = self.fetch_many is not None and len(inspect.signature(self.fetch_many).parameters) > 1
        self.uses_rng = False
        self.epoch = -1

    def __getitems__(self, share: Share) -> Any:
        try:
            batch = self.read(share)
            if isinstance(batch, list):
                if self.collate is not default_collate:
                    seed_cpu(stream(self.seed, share.epoch, share.indices[0]))
                batch = self.collate(batch)
            require_all_samples(batch, len(share.indices), self.name)
            return batch
        except UsageError as error:
            raise SampleError(str(error)) from None

    def read(self, share: Share) -> Any:
        """Return a list of samples, or a batch."""
        epoch, indices = share
        if epoch not in (-1, self.epoch) and hasattr(self.dataset, "set_epoch"):
            self.epoch = epoch
            self.dataset.set_epoch(epoch)
        seeds = sample_seeds(self.seed, epoch, indices)
        for subset in self.subsets:
            indices = [subset[index] for index in indices]
        if self.takes_seeds:
            return self.fetch(indices, torch.from_numpy(seeds))
        if not self.uses_rng:
            # Seeding for each sample takes longer than reading one from memory, so only if the dataset needs it.
            seed_cpu(int(seeds[0]))
            samples = self.fetch(indices)
            if not used_rng(partial(seed_cpu, int(seeds[0]))):
                return samples
            if not isinstance(samples, list):
                raise UsageError(
                    f"{self.name}.__getitems__ uses random numbers for a whole batch, which depend on the number of "
                    "processes. Define __getitems__(indices, seeds) and use one seed for each sample."
                )
            self.uses_rng = True
        return self.fetch_one_by_one(indices, seeds)

    def fetch(self, indices: list[int], *seeds: Tensor) -> Any:
        """Return a list of samples, or a batch."""
        return self.fetch_many(indices, *seeds) if self.fetch_many else [self.dataset[index] for index in indices]

    def fetch_one_by_one(self, indices: list[int], seeds: npt.NDArray[np.int64]) -> list[Any]:
        """Return a list of samples, each read with random numbers of its own."""
        samples = []
        for index, seed in zip(indices, seeds.tolist(), strict=True):
            seed_cpu(seed)
            samples += self.fetch([index])
        return samples


def require_all_samples(batch: Any, wanted: int, dataset: str) -> None:
    """Refuse a batch that lacks samples: ranks would average means over different numbers of samples.

    Raises:
        UsageError: if its tensors agree on another number of samples than ``wanted``.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]
    # In sequences, samples may be the second dimension.
    if leaves and len({len(leaf) for leaf in leaves}) == 1 and not any(wanted in leaf.shape[:2] for leaf in leaves):
        raise UsageError(
            f"a batch of {dataset} has {len(leaves[0])} of its {wanted} samples. Leave samples out in load of task/data.py, "
            "not in collate."
        )


def end_with_run(worker: int) -> None:
    """Make a worker ignore stop signals, because the run still needs it, and exit when the run's process exits.

    torch watches the server that the worker was forked from, which lives on.
    """
    ignore_stop_signals()

    def watch(run: Any) -> None:
        run.join()
        os._exit(1)

    threading.Thread(target=watch, args=(multiprocessing.parent_process(),), daemon=True).start()


def kill_workers() -> None:
    """Kill workers that were not closed: at exit, Python would wait for them forever, as they ignore SIGTERM."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def close_workers(loader: DataLoader[Any]) -> None:
    """Stop a loader's workers: in order, or by force after ``END_S``."""
    iterator: Any = getattr(loader, "_iterator", None)
    # `is not None`: an iterator of length 0 still owns workers.
    if iterator is not None:
        late = threading.Timer(END_S, lambda: [worker.kill() for worker in iterator._workers])
        late.start()
        iterator._shutdown_workers()
        late.cancel()


def _unchanged(batch: Any) -> Any:
    return batch


def serve_workers() -> None:
    """Prepare the server that workers are forked from: it leaves the process group, which gets Ctrl-C, and ignores signals."""
    os.setpgid(0, 0)
    ignore_stop_signals()
    of_torch: Any = signal_handling
    handle_errors = of_torch._set_worker_signal_handlers

    def handle_errors_only() -> None:
        # torch reports a worker that crashes, and would also let SIGTERM end it while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        handle_errors()
        ignore_stop_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    of_torch._set_worker_signal_handlers = handle_errors_only
