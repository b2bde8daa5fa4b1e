"""What each process computes on: an NVIDIA GPU of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checks import Check, processes
from ..errors import UsageError

NAME = "gpu"
DEVICE = "cuda"
DEVICES: tuple[str, ...] = (DEVICE, "cpu")
TRIAL: tuple[str, ...] = ("--distributed.device", "cpu")  # settings to add for a trial without the hardware
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # for every process, unless set: more threads than cores wait for each other
RESERVED = "gpus"  # what a scheduler reserves one of for each process
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
AMP = ("none", "bf16", "fp16")
COMPUTES_AGAIN = True  # whether torch can compute activations once more on it instead of keeping them
COMPILES = True  # whether torch.compile builds kernels for it
MEMORY_EVENTS = 10**5  # the newest so many are kept for a look at the memory: each takes a kilobyte
SHOWS_DRAWS = True  # whether its generator tells that somebody has drawn


def default_nproc_per_node(here: bool = True) -> int | None:
    """Return how many processes to start on a node: one for each GPU visible here, or 1 on other nodes."""
    if not here:
        return 1
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(len([name for name in visible.split(",") if name.strip()]), 1)
    if not shutil.which("nvidia-smi"):
        return 1
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    # Below a GPU that is divided (MIG) stand its parts, of which a process can use one.
    return max(sum(line.startswith("GPU ") for line in listed.stdout.splitlines()), 1)


def hide_others(device: str) -> None:
    """For a trial on the CPU, hide the GPUs, on which ignite would compute; run this before torch looks for them."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def check(device: str, nproc_per_node: int) -> Check:
    """Tell whether so many processes have a GPU each, and why not."""
    import torch

    if device == "cpu":
        cores = os.cpu_count() or 1
        shared = f", which {nproc_per_node} processes share" if nproc_per_node > cores else ""
        return Check("device", True, f"{cores} CPU cores{shared}, as a trial without GPUs")
    count = torch.cuda.device_count()
    if count == 0:
        found, fix = _why_no_gpu()
        return Check("device", False, found, f"{fix}, or try it with {' '.join(TRIAL)}")
    found = f"{count} x {torch.cuda.get_device_name(0)}, {processes([nproc_per_node])} per node"
    fix = f"start at most {processes([count])} per node, one for each GPU"
    return Check("device", nproc_per_node <= count, found, fix)


def _why_no_gpu() -> tuple[str, str]:
    """Return why torch sees no GPU, and what to do about it."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA", "install a torch with CUDA"
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden} names no GPU of this machine", "unset it"
    if not shutil.which("nvidia-smi"):
        return "no NVIDIA driver is installed", "install it"
    said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
    if "version mismatch" in said.stdout + said.stderr:
        return "the NVIDIA driver was updated while an older one is loaded", "restart this machine"
    if said.returncode:
        return f"nvidia-smi fails: {' '.join((said.stdout + said.stderr).split())[:200]}", "fix the driver"
    return f"this driver cannot serve CUDA {torch.version.cuda}", "update the driver, or install an older torch"


def claim(device: str, local_rank: int) -> None:
    """Make this process's own GPU the current one.

    Raises:
        UsageError: if there are fewer GPUs than processes.
    """
    import torch

    if device == "cuda":
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UsageError(f"more processes than GPUs: start at most {count} on each node", 1, local_rank=count)
        torch.cuda.set_device(local_rank)


def set_matmul_precision(name: str) -> None:
    """Set with how many bits products of float32 are computed, where the device leaves a choice."""
    import torch

    torch.set_float32_matmul_precision(name)


def seed(number: int) -> None:
    """Seed the random numbers of the device."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def peak_memory() -> int | None:
    """Return how many bytes of this process's GPU were in use at most; None on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None


def synchronize() -> None:
    """Wait until the device has done what it was given."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def memory_recorded(file: Path) -> Iterator[None]:
    """Write what is in this process's GPU, and who has put it there, inside the ``with`` block; nothing on a CPU."""
    import torch

    if not torch.cuda.is_initialized():
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=MEMORY_EVENTS)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(None)


def versions() -> dict[str, str]:
    """Return the versions of the driver and of CUDA, where there is a GPU."""
    import torch

    if not torch.cuda.device_count() or not shutil.which("nvidia-smi"):
        return {}
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"driver": driver, "cuda": str(torch.version.cuda)}
