"""The device of a process: the cores of a CPU, which all processes of the machine share."""

from __future__ import annotations

import os

from ..report import Check

NAME = "cpu"
DEVICE = "cpu"
DEVICES = (DEVICE,)
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # of every process, unless set: more threads than cores are slower
RESERVED = ""  # what a scheduler reserves for each process
AMP = ("none", "bf16", "fp16")
COMPILES = True  # whether torch.compile supports it
SHOWS_RNG_USE = True  # whether its generator shows that it was used


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node."""
    return 2


def hide_others(device: str) -> None:
    """Hide GPUs: ignite would use them if torch finds one."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def check(device: str, nproc_per_node: int) -> Check:
    """Check that each process has a device."""
    shared = f", shared by {nproc_per_node} processes" if nproc_per_node > cores() else ""
    return Check("device", True, f"{cores()} CPU cores{shared}")


def claim(device: str, local_rank: int) -> None:
    """Select the device of this process: nothing to do."""


def seed(number: int) -> None:
    """Seed the device's random numbers: they are torch's own."""


def peak_memory() -> int | None:
    """Return the most bytes of device memory that were in use: a CPU has none of its own."""
    return None


def synchronize() -> None:
    """Wait until the device has finished: nothing to do."""


def end_step() -> None:
    """Mark the end of a step: nothing to do."""


def versions() -> dict[str, str]:
    """Return the versions of the device's driver: none."""
    return {}
