"""What each process computes on: the cores of a CPU, which all processes of the machine share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..checks import Check

NAME = "cpu"
DEVICE = "cpu"
DEVICES: tuple[str, ...] = (DEVICE,)
TRIAL: tuple[str, ...] = ()  # settings to add for a trial without the hardware
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # for every process, unless set: more threads than cores wait for each other
RESERVED = ""  # what a scheduler reserves one of for each process
MAY_BE_MISSING = False  # whether it has to be looked for before a training starts
AMP = ("none", "bf16", "fp16")
COMPUTES_AGAIN = True  # whether torch can compute activations once more on it instead of keeping them
COMPILES = True  # whether torch.compile builds kernels for it
SHOWS_DRAWS = True  # whether its generator tells that somebody has drawn


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node, this one or another."""
    return 2


def hide_others(device: str) -> None:
    """Hide GPUs, on which ignite would compute wherever torch sees one; run this before torch looks for them."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def check(device: str, nproc_per_node: int) -> Check:
    """Tell whether so many processes have what they compute on."""
    cores = os.cpu_count() or 1
    shared = f", which {nproc_per_node} processes share, each slower than one alone" if nproc_per_node > cores else ""
    return Check("device", True, f"{cores} CPU cores{shared}")


def claim(device: str, local_rank: int) -> None:
    """Make a device of its own the current one of this process: cores need none."""


def set_matmul_precision(name: str) -> None:
    """Set with how many bits products of float32 are computed, where the device leaves a choice."""
    import torch

    torch.set_float32_matmul_precision(name)


def seed(number: int) -> None:
    """Seed the random numbers of the device: the CPU's are torch's own."""


def peak_memory() -> int | None:
    """Return how many bytes of a device's own memory were in use at most: a CPU has none."""
    return None


def synchronize() -> None:
    """Wait until the device has done what it was given: cores do it at once."""


def memory_recorded(file: Path) -> AbstractContextManager[None]:
    """Write what a device's own memory holds inside the ``with`` block: a CPU has none."""
    return nullcontext()


def versions() -> dict[str, str]:
    """Return the versions of what drives the device: nothing, for a CPU."""
    return {}
