"""How the processes meet and exchange: over gloo, with the gradients averaged by one all-reduce in the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TypeVar

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import Check
from ..config import Averaging, DistributedConfig, Ranks
from ..errors import UsageError
from . import transport

Value = TypeVar("Value")

FUSED_OPTIMIZER = True
STEP_AVERAGES = True


def checks(config: DistributedConfig) -> Iterator[Check]:
    """Yield whether this torch can exchange."""
    yield Check("backend", dist.is_gloo_available(), f"torch {torch.__version__}", transport.FIX)


def join(config: DistributedConfig, ranks: Ranks | None) -> None:
    """Join the process group in which this process has ``ranks``."""
    if ranks:
        dist.init_process_group("gloo", timeout=timedelta(seconds=config.timeout_s))


def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Refuse."""
    raise UsageError("byhand cannot synchronize BatchNorm: leave distributed.sync_batchnorm false")


def wrap_model(model: nn.Module, averaging: Averaging) -> nn.Module:
    """Give the model the weights of rank 0."""
    model = model.to(idist.device())
    if dist.is_initialized():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
    return model


def wrap_optimizer(optimizer: Optimizer, model: nn.Module, averaging: Averaging) -> Optimizer:
    """Return the optimizer as it is: the step averages the gradients."""
    return optimizer


def no_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Do nothing: gradients are exchanged in the step."""
    return nullcontext()


def optimizer_step(
    optimizer: Optimizer, scaler: torch.amp.GradScaler, clip_norm: float | None = None
) -> Tensor | None:
    """Average the gradients over the processes and update the weights."""
    norm = None
    scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce_sum(flat)
    flat /= idist.get_world_size()
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
    if clip_norm is not None:
        norm = nn.utils.clip_grad_norm_(parameters, clip_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def lost_peer(error: BaseException) -> str:
    """Return what an exchange says that failed because of another process."""
    return str(error) if "gloo/" in str(error) else ""


def silent_ranks() -> str:
    """Return nothing."""
    return ""


def all_reduce_sum(tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over all processes, and wait for that."""
    if dist.is_initialized():
        dist.all_reduce(tensor)


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all processes, by rank."""
    values = [value] * idist.get_world_size()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values
