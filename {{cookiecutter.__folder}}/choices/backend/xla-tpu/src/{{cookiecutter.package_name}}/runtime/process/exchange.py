"""Communication between processes by torch_xla."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor, nn

from ..report import Check
from . import Ranks, backend

# ignite 0.5.5 calls two functions that torch_xla 2.7 removed.
_torch_xla: Any = xm
_torch_xla.xrt_world_size, _torch_xla.get_ordinal = xr.world_size, xr.global_ordinal


def _broadcast(model: object, tensor: Tensor, src: int) -> Tensor:
    xm.collective_broadcast([tensor], root_ordinal=src)
    return tensor


def _all_gather(model: object, tensor: Tensor, group: object = None) -> Tensor:
    gathered: Tensor = xm.all_gather(tensor if tensor.dim() else tensor.reshape(1))
    return gathered


# Those of ignite build a different graph on each rank, and chips may wait for each other for ever.
_ignite: Any = idist.comp_models.xla._XlaDistModel
_ignite._do_broadcast, _ignite._do_all_gather = _broadcast, _all_gather

Value = TypeVar("Value")


def checks(settings: Any) -> Iterator[Check]:
    """Yield a check that the versions of torch and torch_xla match."""
    version = metadata.version("torch_xla")
    matches = torch.__version__.rpartition(".")[0] == version.rpartition(".")[0]
    yield Check("backend", matches, f"torch {torch.__version__} with torch_xla {version}", backend.FIX)


def join(settings: Any, ranks: Ranks | None) -> None:
    """Join the processes that torch_xla has started and connected; without ranks, this process is the only one."""
    idist.initialize("xla-tpu")


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model itself: ``average`` is called after the backward pass."""
    return model


def average(tensors: list[Tensor]) -> None:
    """Replace tensors of one dtype by their means over the ranks."""
    xm.all_reduce(xm.REDUCE_SUM, tensors, scale=1 / xr.world_size())


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all ranks; they are pickled."""
    return [pickle.loads(part) for part in xm.rendezvous("all_gather_object", pickle.dumps(value))]


def lost_peer(error: BaseException) -> str:
    """Return why another process made a collective fail; an empty text for other errors."""
    found = re.search("Connection reset by peer|Socket closed", str(error))
    return found[0] if found and type(error) is RuntimeError else ""
