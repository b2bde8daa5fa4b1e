"""The device of a process: an NVIDIA GPU of its own."""

from __future__ import annotations

import os
import shutil
import subprocess

from ..report import Check, UsageError, require

NAME = "gpu"
DEVICE = "cuda"
DEVICES = (DEVICE, "cpu")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # of every process, unless set: more threads than cores are slower
RESERVED = "gpus"  # what a scheduler reserves for each process
AMP = ("none", "bf16", "fp16")
COMPILES = True  # whether torch.compile supports it
SHOWS_RNG_USE = True  # whether its generator shows that it was used


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node: one for each visible GPU, or 1 on other nodes."""
    if not here:
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(len([name for name in visible.split(",") if name.strip()]), 1)
    if not shutil.which("nvidia-smi"):
        return 1
    listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
    # MIG slices are listed below their GPU, and a process can use only one of them.
    return max(sum(line.startswith("GPU ") for line in listing.splitlines()), 1)


def hide_others(device: str) -> None:
    """Hide the GPUs from a run on the CPU: ignite would use them. Call it before torch looks for them."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def check(device: str, nproc_per_node: int) -> Check:
    """Check that each process has a device."""
    if device == "cpu":
        shared = f", shared by {nproc_per_node} processes" if nproc_per_node > cores() else ""
        return Check("device", True, f"{cores()} CPU cores{shared}")
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        found, fix = _why_no_gpu()
        return Check("device", False, found, f"{fix}, or try --distributed.device cpu")
    processes = f"{nproc_per_node} process{'es' * (nproc_per_node > 1)} per node"
    found = f"{processes} on {count} x {torch.cuda.get_device_name(0)}"
    return Check("device", nproc_per_node <= count, found, f"start at most {count} on each node, one for each GPU")


def _why_no_gpu() -> tuple[str, str]:
    """Return why torch finds no GPU, and the fix."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA", "install a torch with CUDA"
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"CUDA_VISIBLE_DEVICES {visible!r} does not name a GPU of this machine", "unset it"
    if not shutil.which("nvidia-smi"):
        return "the NVIDIA driver is not installed", "install it"
    smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
    output = " ".join((smi.stdout + smi.stderr).split())
    if "version mismatch" in output:
        return "the NVIDIA driver was updated while an older version is loaded", "restart this machine"
    if smi.returncode:
        return f"nvidia-smi fails ({output[:200]})", "fix the driver"
    return f"the NVIDIA driver does not support CUDA {torch.version.cuda}", "update it, or install an older torch"


def claim(device: str, local_rank: int) -> None:
    """Select the GPU of this process.

    Raises:
        UsageError: if there are fewer GPUs than processes.
    """
    if device == "cpu":
        return
    import torch

    count = torch.cuda.device_count()
    if local_rank >= count:
        try:
            require([check(device, local_rank + 1)])
        except UsageError as error:
            raise UsageError(str(error), 1, local_rank=count) from None
    torch.cuda.set_device(local_rank)


def seed(number: int) -> None:
    """Seed the device's random numbers."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def peak_memory() -> int | None:
    """Return the most bytes of device memory that were in use, or None on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None


def synchronize() -> None:
    """Wait until the device has finished."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def end_step() -> None:
    """Mark the end of a step: nothing to do."""


def versions() -> dict[str, str]:
    """Return the versions of the driver and of CUDA, if there is a GPU."""
    import torch

    if not torch.cuda.device_count() or not shutil.which("nvidia-smi"):
        return {}
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"driver": driver, "cuda": str(torch.version.cuda)}
