"""Facts about the backend; importing this file does not import torch: mpi, for a torch that was built with MPI."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ..checks import Check

NAME = "mpi"
PACKAGES: tuple[str, ...] = ()  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME,)  # what may carry the tensors
ON_CPU = NAME  # what carries them on a CPU
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
FIX = "install a torch that was built with MPI, or make the project anew with backend=auto"
# In which types gradients can travel, and how the processes can share a training.
COMPRESSIONS = {"mpi": ("none",)}
STRATEGIES = ("ddp", "local-sgd", "zero1")
# Of the tensors that can travel.
TYPES: tuple[str, ...] = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64")
BUCKETS = True  # whether DistributedDataParallel exchanges gradients, in parts of a size that can be chosen
RENDEZVOUS = False  # MPI connects the processes that its launcher has started
INTERFACE = "GLOO_SOCKET_IFNAME"  # names the network interface that is used, or looked at by doctor, between nodes
LEAVES_TOGETHER = True  # whether the end of a process waits for that of all others
EXPORTED = ("GLOO_", "UCX_")  # how variables begin that other nodes need too
BOUND_TO_DEVICE: tuple[str, ...] = ()  # whose process group belongs to one device of each process
UNTIL_IDLE_S = 0.5  # what torch's thread for MPI gets to free the last tensor, which takes it some microseconds


def prepare() -> None:
    """Prepare ignite 0.5.5 for the process group.

    It counts the processes of a node over a gloo group, which cannot be made inside an MPI world. And it ends the group at
    once: torch's thread for MPI may then still wait for Python's lock, to free the tensor of the last exchange, while this
    thread holds that lock and waits for torch's thread, for ever.
    """
    import ignite.distributed as idist
    import torch
    import torch.distributed as dist

    def nproc_per_node_over_mpi(self: Any) -> int:
        largest = torch.tensor([self.get_local_rank() + 1])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    model = idist.comp_models.native._NativeDistModel
    finalize = model.finalize

    def finalize_when_idle(self: Any) -> None:
        # Sleeping lets go of Python's lock.
        time.sleep(UNTIL_IDLE_S)
        finalize(self)

    model._compute_nproc_per_node = nproc_per_node_over_mpi  # type: ignore[method-assign]
    model.finalize = finalize_when_idle  # type: ignore[method-assign]


def checks(nproc_per_node: int) -> Iterator[Check]:
    """Yield what can be said of the paths between the devices of this machine."""
    yield from ()
