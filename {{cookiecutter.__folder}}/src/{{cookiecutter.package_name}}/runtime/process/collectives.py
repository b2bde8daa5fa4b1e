"""Collective operations: every rank must call them at the same point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import ignite.distributed as idist
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..report import UsageError
from . import exchange

Value = TypeVar("Value")
# Called by ``distribute`` with the model; a pack may replace it.
wrap: Callable[..., nn.Module] = exchange.wrap
_trainable: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def from_rank_zero(value: Value) -> Value:
    """Return the value of rank 0 on every rank; it is pickled."""
    return exchange.all_gather_object(value)[0] if idist.get_world_size() > 1 else value


def any_rank(flag: bool) -> bool:
    """Return whether ``flag`` is true on some rank."""
    return bool(idist.all_reduce(float(flag), "MAX")) if idist.get_world_size() > 1 else flag


def run_on_rank_zero(action: Callable[[], object]) -> None:
    """Run ``action`` on rank 0 while the others wait.

    Raises:
        UsageError: on every rank, if the action raised it.
    """
    failure = ""
    if idist.get_rank() == 0:
        try:
            action()
        except UsageError as error:
            failure = str(error)
    if failure := from_rank_zero(failure):
        raise UsageError(failure, 1)


def broadcast(tensors: list[Tensor]) -> None:
    """Replace tensors by those of rank 0; sparse tensors are left as they are."""
    tensors = [tensor for tensor in tensors if tensor.layout == torch.strided and not hasattr(tensor, "to_local")]
    if not tensors or idist.get_world_size() == 1:
        return
    # All at once as bytes, because their types may differ.
    parts = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors]
    received: Any = idist.broadcast(torch.cat(parts), src=0)
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(received, [len(part) for part in parts]), strict=True):
            # A copy: a view of another type must start at a multiple of its size.
            tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))


def distribute(model: nn.Module, **options: Any) -> nn.Module:
    """Broadcast the weights of rank 0, and average gradients over the ranks.

    Args:
        options: arguments of DistributedDataParallel, for the backends that use it. With the others,
            ``average_gradients`` does the work after the backward pass.
    """
    if idist.get_world_size() == 1:
        return model
    broadcast([*model.parameters(), *model.buffers()])
    if not any(weight.requires_grad for weight in model.parameters()):
        return model
    wrapped = wrap(model, **options)
    if isinstance(wrapped, DistributedDataParallel):
        note_trainable(model)
    return wrapped


def average_gradients(model: nn.Module) -> None:
    """Average the gradients of a model over the ranks, unless DistributedDataParallel has done so.

    Call it after the backward pass and before the gradients are read.
    """
    if (
        idist.get_world_size() == 1
        or isinstance(model, DistributedDataParallel)
        or hasattr(model, "averages_gradients")
    ):
        return
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    # In the order of the weights, which is the same on every rank.
    with torch.no_grad():
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            exchange.average([gradient for gradient in gradients if gradient.dtype == dtype])


def no_sync(model: nn.Module, enabled: bool = True) -> AbstractContextManager[None]:
    """Accumulate gradients on this rank only, inside the ``with`` block."""
    block: AbstractContextManager[None] = getattr(model, "no_sync", nullcontext)() if enabled else nullcontext()
    return block


def note_trainable(model: nn.Module) -> None:
    """Record which weights require gradients: the backward pass averages only these."""
    _trainable[model] = {name for name, weight in model.named_parameters() if weight.requires_grad}


def require_same_trainable(model: nn.Module) -> None:
    """Raise UsageError if a weight was frozen or thawed since ``note_trainable``."""
    now = {name for name, weight in model.named_parameters() if weight.requires_grad}
    if changed := sorted(now ^ _trainable.get(model, now)):
        names = f"{changed[0]} and {len(changed) - 1} others" if len(changed) > 1 else changed[0]
        fix = "Keep it; docs/how-do-i.md shows how to unfreeze layers at a step."
        raise UsageError(f"requires_grad of {names} changed after the model was distributed. {fix}", 1)


@torch.no_grad()
def is_finite(model: nn.Module) -> bool:
    """Return True if all weights are finite; it waits for the device once."""
    weights = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in model.parameters()]
    return not weights or bool(torch.stack([weight.isfinite().all() for weight in weights]).all())


def weights_digest(model: nn.Module) -> int:
    """Return a checksum of the weights, which changes with every bit."""
    sizes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    # A sum of integers does not depend on the order of its terms.
    total = torch.zeros((), dtype=torch.int64, device=idist.device())
    for weight in model.parameters():
        if not hasattr(weight, "to_local"):
            total += weight.detach().contiguous().view(sizes.get(weight.element_size(), torch.uint8)).sum()
    return int(total)


def require_equal_weights(model: nn.Module, step: int) -> None:
    """Raise UsageError on every rank unless all ranks have the same weights, bit for bit."""
    if idist.get_world_size() > 1 and len(set(exchange.all_gather_object(weights_digest(model)))) > 1:
        raise UsageError(
            f"the ranks' weights differ by {weights_difference(model):g} after step {step}; nothing was saved. Check that "
            "every rank takes the same backward passes and that gradients are averaged.",
            1,
        )


def weights_difference(model: nn.Module) -> float:
    """Return the largest difference between any rank's weights and those of rank 0."""
    weights = [weight.detach() for weight in model.parameters() if not hasattr(weight, "to_local")]
    if idist.get_world_size() == 1 or not weights:
        return 0.0
    real = [torch.view_as_real(weight) if weight.is_complex() else weight for weight in weights]
    mine = torch.cat([weight.flatten().float() for weight in real])
    reference: Any = idist.broadcast(mine.clone(), src=0)
    return float(idist.all_reduce(float((mine - reference).nan_to_num().abs().max()), "MAX"))
