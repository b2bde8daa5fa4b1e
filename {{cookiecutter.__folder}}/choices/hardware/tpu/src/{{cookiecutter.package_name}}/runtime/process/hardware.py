"""The device of a process: a TPU chip of its own, or XLA's CPU device for a trial."""

from __future__ import annotations

import os

from ..report import Check, UsageError

NAME = "tpu"
DEVICE = "xla"
DEVICES = (DEVICE,)
ENVIRONMENT = {"PJRT_DEVICE": "TPU"}  # of every process, unless set
if os.environ.get("PJRT_DEVICE") == "CPU":
    # In a short trial, LLVM would optimize for longer than the steps take without it.
    ENVIRONMENT["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
RESERVED = ""  # what a scheduler reserves for each process
AMP = ("none", "bf16")  # fp16 would need a scaled loss
COMPILES = False  # whether torch.compile supports it: XLA compiles every step itself
SHOWS_RNG_USE = False  # whether its generator shows that it was used


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node: None, torch_xla starts one for each chip."""
    return None


def hide_others(device: str) -> None:
    """Hide other devices: nothing to do, torch_xla does not use them."""


def check(device: str, nproc_per_node: int) -> Check:
    """Check that PJRT_DEVICE is set; a missing TPU shows only when the processes start."""
    kind = os.environ.get("PJRT_DEVICE", "")
    if kind == "CPU" and nproc_per_node > 1:
        found = f"distributed.nproc_per_node is {nproc_per_node}, but PJRT_DEVICE=CPU is one device"
        return Check("device", False, found, "set it to 1")
    found = f"PJRT_DEVICE={kind}" if kind else "PJRT_DEVICE is not set"
    return Check("device", bool(kind), found, "set it to TPU, or to CPU for a trial")


def claim(device: str, local_rank: int) -> None:
    """Check that this process has one device, which torch_xla has selected.

    Raises:
        UsageError: if it has several, as on a TPU v2 or v3, where torch_xla runs them in threads of one process.
    """
    import torch_xla.runtime as xr

    if (devices := xr.addressable_device_count()) > 1:
        raise UsageError(f"each process has {devices} devices instead of one. Use a TPU v4 or later.", 1)


def seed(number: int) -> None:
    """Seed the device's random numbers."""
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(number & (2**63 - 1))


def peak_memory() -> int | None:
    """Return the most bytes of device memory that were in use: torch_xla does not record it."""
    return None


def synchronize() -> None:
    """Run the pending operations, as a graph of their own, and wait until the device has finished."""
    import torch_xla
    from torch_xla.core import xla_model

    torch_xla.sync(wait=True)
    # That waits only until the device has received the graph.
    xla_model.wait_device_ops()


def end_step() -> None:
    """Mark the end of a step: torch_xla compiles it as one graph and runs it."""
    import torch_xla

    torch_xla.sync()


def versions() -> dict[str, str]:
    """Return the versions of the device's driver: none beside torch_xla's."""
    return {}
