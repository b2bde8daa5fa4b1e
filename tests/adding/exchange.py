"""How processes meet and communicate: over gloo, with one all-reduce after the backward pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..report import Check
from . import Ranks, backend

Value = TypeVar("Value")


def checks(settings: Any) -> Iterator[Check]:
    """Yield whether this torch can communicate."""
    yield Check("backend", dist.is_gloo_available(), f"torch {torch.__version__}", backend.FIX)


def join(settings: Any, ranks: Ranks | None) -> None:
    """Join the process group as ``ranks``; without ranks, this process is the only one."""
    if ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", timeout=timedelta(seconds=settings.timeout_s))


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model as it is: ``average`` does the work."""
    return model


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
    """Return why a collective failed because of another process; empty for other errors."""
    return str(error) if "gloo/" in str(error) else ""
