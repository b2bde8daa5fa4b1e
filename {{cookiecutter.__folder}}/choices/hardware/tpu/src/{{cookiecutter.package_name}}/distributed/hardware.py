"""What each process computes on: a TPU chip of its own, or XLA's CPU device for a trial."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..checks import Check
from ..errors import UsageError

NAME = "tpu"
DEVICE = "xla"
DEVICES: tuple[str, ...] = (DEVICE,)
TRIAL: tuple[str, ...] = ()  # settings to add for a trial without a TPU: PJRT_DEVICE=CPU says it
ENVIRONMENT = {"PJRT_DEVICE": "TPU"}  # for every process, unless set
if os.environ.get("PJRT_DEVICE") == "CPU":
    # Optimizing its few steps takes LLVM longer than the whole trial takes without.
    ENVIRONMENT["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
AMP = ("none", "bf16")  # fp16 would need its losses scaled
COMPUTES_AGAIN = False  # whether torch can compute activations once more on it instead of keeping them
COMPILES = False  # whether torch.compile builds kernels for it: XLA compiles each step itself
SHOWS_DRAWS = False  # whether its generator tells that somebody has drawn


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node: None, as torch_xla starts one for each chip."""
    return None


def hide_others(device: str) -> None:
    """Keep the training from using other devices: torch_xla sees none."""


def check(device: str, nproc_per_node: int) -> Check:
    """Tell whether PJRT_DEVICE is set; whether there is a TPU shows when the processes start."""
    kind = os.environ.get("PJRT_DEVICE", "")
    if kind == "CPU" and nproc_per_node > 1:
        return Check("device", False, "the CPU is one device", "leave distributed.nproc_per_node at 1")
    found = f"PJRT_DEVICE={kind}" if kind else "PJRT_DEVICE is not set"
    return Check("device", bool(kind), found, "set PJRT_DEVICE=TPU, or CPU for a trial")


def claim(device: str, local_rank: int) -> None:
    """Make sure that this process has one device: torch_xla has made it the current one.

    Raises:
        UsageError: if it has several, as on a TPU v2 or v3, where torch_xla trains in as many threads of one process.
    """
    import torch_xla.runtime as xr

    if (devices := xr.addressable_device_count()) > 1:
        raise UsageError(f"each process has {devices} devices, not one: use a TPU v4 or later", 1)


def set_matmul_precision(name: str) -> None:
    """Set with how many bits products of float32 are computed: on a TPU, torch's own setting is not read."""
    import torch
    import torch_xla.backends

    torch.set_float32_matmul_precision(name)
    wanted = {"medium": "default"}.get(name, name)
    # It warns of every call, whether it changes something or not.
    if torch_xla.backends.get_mat_mul_precision() != wanted:
        torch_xla.backends.logger.setLevel("ERROR")
        torch_xla.backends.set_mat_mul_precision(wanted)


def seed(number: int) -> None:
    """Seed the random numbers of the device."""
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(number & (2**63 - 1))


def peak_memory() -> int | None:
    """Return how many bytes of the device's memory were in use at most: torch_xla does not say."""
    return None


def synchronize() -> None:
    """Compute what has been asked for until now, in a graph of its own, and wait for it."""
    import torch_xla
    from torch_xla.core import xla_model

    torch_xla.sync(wait=True)
    # That has waited only until the device was given all of it.
    xla_model.wait_device_ops()


def memory_recorded(file: Path) -> AbstractContextManager[None]:
    """Write what the device's memory holds inside the ``with`` block: torch_xla does not say."""
    return nullcontext()


def versions() -> dict[str, str]:
    """Return the versions of what drives the device: they are torch_xla's."""
    return {}
