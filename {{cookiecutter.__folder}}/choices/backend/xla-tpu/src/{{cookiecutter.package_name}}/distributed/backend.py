"""How the processes meet and exchange: by torch_xla."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import Check
from ..config import Averaging, DistributedConfig, Ranks
from ..errors import UsageError
from . import hardware, transport

# ignite 0.5.5 asks torch_xla for two functions that torch_xla 2.7 removed.
of_torch_xla: Any = xm
of_torch_xla.xrt_world_size, of_torch_xla.get_ordinal = xr.world_size, xr.global_ordinal


def _broadcast(model: object, tensor: Tensor, src: int) -> Tensor:
    xm.collective_broadcast([tensor], root_ordinal=src)
    return tensor


def _all_gather(model: object, tensor: Tensor, group: object = None) -> Tensor:
    gathered: Tensor = xm.all_gather(tensor if tensor.dim() else tensor.reshape(1))
    return gathered


# The graphs of ignite's own differ from rank to rank, which torch_xla warns of: chips may wait for each other for ever.
of_ignite: Any = idist.comp_models.xla._XlaDistModel
of_ignite._do_broadcast, of_ignite._do_all_gather = _broadcast, _all_gather

Value = TypeVar("Value")

# XLA itself makes one kernel of an optimizer's step.
FUSED_OPTIMIZER = False
# Whether optimizer_step averages the gradients; else they are averaged before, by what wrap_model or wrap_optimizer add.
STEP_AVERAGES = True


def checks(config: DistributedConfig) -> Iterator[Check]:
    """Yield whether torch and torch_xla fit each other."""
    version = metadata.version("torch_xla")
    fits = torch.__version__.rpartition(".")[0] == version.rpartition(".")[0]
    yield Check("backend", fits, f"torch {torch.__version__} with torch_xla {version}", transport.FIX)


def join(config: DistributedConfig, ranks: Ranks | None) -> None:
    """Join the other processes, which torch_xla has started and connected."""
    idist.initialize("xla-tpu")


def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Refuse: torch_xla has no such layer.

    Raises:
        UsageError: always.
    """
    raise UsageError("torch_xla cannot synchronize BatchNorm: leave distributed.sync_batchnorm false")


def wrap_model(model: nn.Module, averaging: Averaging) -> nn.Module:
    """Move the model to this process's device and give it the weights of rank 0."""
    model = model.to(idist.device())
    xm.broadcast_master_param(model)
    return model


def wrap_optimizer(optimizer: Optimizer, model: nn.Module, averaging: Averaging) -> Optimizer:
    """Return the optimizer as it is: the step averages the gradients, in one graph with the update."""
    return optimizer


def no_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Do nothing: gradients are exchanged in the step, whatever the number of backward passes."""
    return nullcontext()


def optimizer_step(optimizer: Optimizer, scaler: torch.amp.GradScaler, clip_norm: float | None = None) -> Tensor | None:
    """Average the gradients over the processes and update the weights.

    Args:
        scaler: takes no part here.
        clip_norm: scale the averaged gradients of all processes down to this norm.

    Returns the norm of these gradients before, on the device, where it is computed.
    """
    norm = None
    if clip_norm is None:
        xm.optimizer_step(optimizer)
    else:
        xm.reduce_gradients(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
    torch_xla.sync()
    return norm


def lost_peer(error: BaseException) -> str:
    """Return what an exchange says that failed because of another process; nothing for any other error."""
    said = re.search("Connection reset by peer|Socket closed", str(error))
    return said[0] if said and type(error) is RuntimeError else ""


def silent_ranks() -> str:
    """Return nothing: torch_xla does not tell which processes did not come to an exchange."""
    return ""


def all_reduce_sum(tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over all processes, and wait for that."""
    xm.all_reduce(xm.REDUCE_SUM, [tensor])
    hardware.synchronize()


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all processes, by rank; they are pickled."""
    return [pickle.loads(part) for part in xm.rendezvous("all_gather_object", pickle.dumps(value))]
