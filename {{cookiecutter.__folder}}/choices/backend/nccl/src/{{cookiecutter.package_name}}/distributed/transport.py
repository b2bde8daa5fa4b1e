"""What is known of the backend without importing torch: nccl, which comes with torch for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ..checks import Check
from ..config import Backend

NAME: Backend = "nccl"
# Distributions that have to fit torch.
PACKAGES: tuple[str, ...] = ()
# What may carry the tensors; and what does on a CPU, for a trial without GPUs.
CHOICES: tuple[Backend, ...] = (NAME, "gloo")
ON_CPU: Backend = "gloo"
# What to do if torch has none; whether that has to be looked at before a training starts.
FIX = "install a torch with CUDA, or try it with --distributed.device cpu"
MAY_BE_MISSING = True
# Its processes find each other at MASTER_ADDR and MASTER_PORT.
RENDEZVOUS = True
# How the names of variables begin that the processes on other nodes need too.
EXPORTED = ("GLOO_", "NCCL_", "UCX_")
# Those whose process group belongs to one device of each process.
BOUND_TO_DEVICE: tuple[Backend, ...] = (NAME,)


def prepare() -> None:
    """Prepare ignite for the process group: nothing to do."""


def checks(nproc_per_node: int) -> Iterator[Check]:
    """Yield whether the GPUs of this machine can copy to each other; where they cannot, training is only slower."""
    import torch

    count = torch.cuda.device_count()
    pairs = [(first, second) for first in range(count) for second in range(first)]
    missing = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    found = f"every pair of {count} GPUs has a path"
    if missing:
        found = f"{len(missing)} of {len(pairs)} pairs of GPUs have no path and exchange through the host's memory: "
        found += "slower, and NCCL_P2P_DISABLE=1 if it hangs"
    if nproc_per_node > 1 and pairs:
        yield Check("peer to peer", True, found)
