"""What is known of the backend without importing torch: gloo, which comes with torch."""

from __future__ import annotations

from collections.abc import Iterator

from ..checks import Check
from ..config import Backend

NAME: Backend = "gloo"
# Distributions that have to fit torch.
PACKAGES: tuple[str, ...] = ()
# What may carry the tensors; and what does on a CPU.
CHOICES: tuple[Backend, ...] = (NAME,)
ON_CPU: Backend = NAME
# What to do if torch has none; whether that has to be looked at before a training starts.
FIX = "install a torch that was built with it"
MAY_BE_MISSING = False
# Its processes find each other at MASTER_ADDR and MASTER_PORT.
RENDEZVOUS = True
# How the names of variables begin that the processes on other nodes need too.
EXPORTED = ("GLOO_", "UCX_")
# Those whose process group belongs to one device of each process.
BOUND_TO_DEVICE: tuple[Backend, ...] = ()


def prepare() -> None:
    """Prepare ignite for the process group: nothing to do."""


def checks(nproc_per_node: int) -> Iterator[Check]:
    """Yield what can be said of the paths between the devices of this machine."""
    yield from ()
