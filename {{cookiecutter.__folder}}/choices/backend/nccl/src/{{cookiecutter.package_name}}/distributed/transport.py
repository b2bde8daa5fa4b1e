"""Facts about the backend; importing this file does not import torch: nccl, which comes with torch for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ..checks import Check

NAME = "nccl"
PACKAGES: tuple[str, ...] = ()  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME, "gloo")  # what may carry the tensors
ON_CPU = "gloo"  # what carries them on a CPU, in a trial without GPUs
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
FIX = "install a torch with CUDA, or try it with --distributed.device cpu"
# In which types gradients can travel, and how the processes can share a training.
COMPRESSIONS = {"nccl": ("none", "fp16", "bf16", "powersgd"), "gloo": ("none", "fp16", "powersgd")}
STRATEGIES = ("ddp", "local-sgd", "zero1", "fsdp2")
TYPES: tuple[str, ...] = ()  # of the tensors that can travel, if not all can
BUCKETS = True  # whether DistributedDataParallel exchanges gradients, in parts of a size that can be chosen
RENDEZVOUS = True  # its processes find each other at MASTER_ADDR and MASTER_PORT
INTERFACE = "GLOO_SOCKET_IFNAME"  # names the network interface that is used, or looked at by doctor, between nodes
LEAVES_TOGETHER = False  # whether the end of a process waits for that of all others
EXPORTED = ("GLOO_", "NCCL_", "UCX_")  # how variables begin that other nodes need too
BOUND_TO_DEVICE: tuple[str, ...] = (NAME,)  # whose process group belongs to one device of each process


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
