"""Communication between processes by a process group of torch.distributed."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..report import Check, UsageError
from . import Ranks, backend

Value = TypeVar("Value")


def checks(settings: Any) -> Iterator[Check]:
    """Yield a check that this torch has the backend."""
    available = dist.is_backend_available(settings.backend)
    found = f"torch {torch.__version__} {'has' if available else 'does not have'} {settings.backend}"
    yield Check("backend", available, found, backend.FIX)


def join(settings: Any, ranks: Ranks | None) -> None:
    """Join the process group as ``ranks``; without ranks, this process is the only one.

    Raises:
        UsageError: if torch lacks the backend, or the processes do not find each other.
    """
    # ignite uses Slurm's ranks wherever this is set, even if another launcher has set its own.
    os.environ.pop("SLURM_JOB_ID", None)
    if not ranks:
        return
    if not dist.is_backend_available(settings.backend):
        raise UsageError(f"torch {torch.__version__} does not have {settings.backend}. Fix: {backend.FIX}.", 1)
    # ignite would create a gloo group to count the processes of a node; an MPI world cannot have one.
    model: Any = idist.comp_models.native._NativeDistModel
    model._compute_nproc_per_node = lambda self: ranks.local_world_size
    if ranks.world_size == ranks.local_world_size:
        # On one machine, the loopback interface is enough.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        for name in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.update(RANK=str(ranks.rank), WORLD_SIZE=str(ranks.world_size), LOCAL_RANK=str(ranks.local_rank))
    options: dict[str, Any] = {"timeout": timedelta(seconds=settings.timeout_s)}
    if backend.BOUND_TO_DEVICE and settings.backend == backend.NAME:
        options["device_id"] = torch.device("cuda", ranks.local_rank)
    try:
        dist.init_process_group(settings.backend, **options)
    except (dist.DistNetworkError, dist.DistStoreError, OSError, ValueError) as error:
        place = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UsageError(
            f"the processes cannot meet at {place} ({str(error).strip().splitlines()[0]}). Set MASTER_ADDR to the host of "
            "rank 0, and MASTER_PORT to a free port there.",
            1,
            ranks.local_rank,
        ) from None
    if (connected := dist.get_world_size()) != ranks.world_size:
        raise UsageError(
            f"{ranks.world_size} processes were started, but {settings.backend} connects {connected}. Use the launcher of the "
            f"{settings.backend} that this torch was built with.",
            1,
        )


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model in DistributedDataParallel, which averages gradients during the backward pass."""
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
    # MPI cannot send every dtype; buffers travel as bytes then.
    wrapped.broadcast_buffers = not backend.TYPES
    return wrapped


def average(tensors: list[Tensor]) -> None:
    """Replace tensors of one dtype by their means over the ranks."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all ranks; they are pickled."""
    values = [value] * idist.get_world_size()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def lost_peer(error: BaseException) -> str:
    """Return why another process made a collective fail; an empty text for other errors."""
    # gloo's text names a source file first and gives advice last.
    found = re.search(r"^\[\S+/gloo/\S+ (?:Read error \S+ )?(.*?)(?:\. This is typically|\n|$)", str(error))
    found = found or re.search("^(Application timeout caused pair closure)", str(error))
    if isinstance(error, dist.DistBackendError):
        return str(error).strip().splitlines()[-1]
    return found[1] if found and type(error) is RuntimeError else ""
