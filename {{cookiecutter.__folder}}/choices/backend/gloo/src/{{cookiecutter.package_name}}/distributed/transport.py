"""Facts about the backend; importing this file does not import torch: gloo, which comes with torch."""

from __future__ import annotations

from collections.abc import Iterator

from ..checks import Check

NAME = "gloo"
PACKAGES: tuple[str, ...] = ()  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME,)  # what may carry the tensors
ON_CPU = NAME  # what carries them on a CPU
MAY_BE_MISSING = False  # whether it has to be looked for before a training starts
FIX = "install a torch that was built with it"
# In which types gradients can travel, and how the processes can share a training.
COMPRESSIONS = {"gloo": ("none", "fp16", "powersgd")}
STRATEGIES = ("ddp", "local-sgd", "zero1", "fsdp2")
TYPES: tuple[str, ...] = ()  # of the tensors that can travel, if not all can
BUCKETS = True  # whether DistributedDataParallel exchanges gradients, in parts of a size that can be chosen
RENDEZVOUS = True  # its processes find each other at MASTER_ADDR and MASTER_PORT
INTERFACE = "GLOO_SOCKET_IFNAME"  # names the network interface that is used, or looked at by doctor, between nodes
LEAVES_TOGETHER = False  # whether the end of a process waits for that of all others
EXPORTED = ("GLOO_", "UCX_")  # how variables begin that other nodes need too
BOUND_TO_DEVICE: tuple[str, ...] = ()  # whose process group belongs to one device of each process


def prepare() -> None:
    """Prepare ignite for the process group: nothing to do."""


def checks(nproc_per_node: int) -> Iterator[Check]:
    """Yield what can be said of the paths between the devices of this machine."""
    yield from ()
