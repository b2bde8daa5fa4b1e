"""What the ranks agree on; every rank has to run each of these at the same point."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, unquote

import ignite.distributed as idist
import torch
from torch import Tensor, nn

from .distributed import launcher
from .errors import UsageError

# Whole numbers as long as the numbers of a tensor, by the bytes of one.
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def all_reduce_any(flag: bool) -> bool:
    """Tell every rank whether ``flag`` is true on one of them."""
    return bool(idist.all_reduce(float(flag), "MAX"))


def rank_zero_only(action: Callable[[], object]) -> None:
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
    if failure := text_of_rank_zero(failure):
        raise UsageError(failure, 1)


def text_of_rank_zero(text: str) -> str:
    """Return the text that rank 0 has."""
    if idist.get_world_size() == 1:
        return text
    # In ASCII: ignite makes room for as many bytes as the text has characters, and would cut off the others.
    sent = quote(text, errors="surrogateescape")
    return unquote(str(idist.broadcast(sent, src=0, safe_mode=True)), errors="surrogateescape")


def local_rank_zero_first(action: Callable[[], object], what: str) -> None:
    """Run ``action`` in the first process of each node while the others wait; rank 0 is done before other nodes begin.

    Raises:
        UsageError: on every rank, if the action failed on one of them.
    """
    # Where nothing has started this process, it is alone, and to ask ignite might take a device that others need.
    started = launcher.ranks() is not None
    rank, local_rank = (idist.get_rank(), idist.get_local_rank()) if started else (0, 0)
    # Nodes often share their file system, and would write the same files at the same time.
    for turn in (rank == 0, rank > 0 and local_rank == 0):
        failure = ""
        if turn:
            try:
                action()
            except UsageError as error:
                failure = str(error)
            except (OSError, RuntimeError) as error:
                failure = f"{type(error).__name__}: {error}"
        if all_reduce_any(bool(failure)) if started else failure:
            raise UsageError(f"could not {what}: {failure or 'it failed on another node'}", 1)


def is_shared_out(model: nn.Module) -> bool:
    """Tell whether each rank keeps a part of the weights only, so that every rank must take part whenever the model runs."""
    # Between a forward pass without a backward one and the next step, the weights themselves are whole.
    return any(hasattr(part, "set_requires_gradient_sync") for part in model.modules())


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank keeps: all of it, unless it is shared out."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as every rank has it, although it may be shared out."""
    everything: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return everything


def broadcast_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, such as BatchNorm's running statistics."""
    broadcast(list(model.buffers()))


def broadcast(tensors: list[Tensor]) -> None:
    """Give every rank the values of rank 0; sparse tensors stay as they are."""
    tensors = [tensor for tensor in tensors if tensor.layout == torch.strided]
    if not tensors or idist.get_world_size() == 1:
        return
    # As bytes, all of them in one exchange, whatever their types.
    parts = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors]
    everything = idist.broadcast(torch.cat(parts), src=0)
    assert isinstance(everything, Tensor)
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(everything, [len(part) for part in parts]), strict=True):
            # A copy, as a view of another type has to begin at a multiple of its size.
            tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))


@torch.no_grad()
def average(tensors: list[Tensor]) -> None:
    """Replace these tensors by their means over the ranks, in one exchange for each of their types."""
    if idist.get_world_size() == 1:
        return
    # In the order of the tensors, which is the same on every rank.
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        # A count of steps may be on the CPU.
        everything = idist.all_reduce(torch.cat([tensor.flatten().to(idist.device()) for tensor in alike]))
        assert isinstance(everything, Tensor)
        everything /= idist.get_world_size()
        parts = torch.split(everything, [tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def are_equal(tensors: list[Tensor]) -> bool:
    """Tell every rank whether these tensors are, bit for bit, the same on all ranks."""
    if not tensors or idist.get_world_size() == 1:
        return True
    # A sum of whole numbers is the same in whatever order a processor adds them.
    total = torch.zeros((), dtype=torch.int64, device=idist.device())
    for tensor in tensors:
        total += tensor.detach().contiguous().view(BITS.get(tensor.element_size(), torch.uint8)).sum()
    # As bytes, which no device rounds on their way.
    everyones = idist.all_gather(total.reshape(1).view(torch.uint8))
    assert isinstance(everyones, Tensor)
    return len({tuple(one) for one in everyones.reshape(-1, 8).tolist()}) == 1


def require_equal_weights(model: nn.Module, step: int) -> None:
    """Refuse to continue with weights that are not, bit for bit, the same on all ranks.

    Raises:
        UsageError: on every rank.
    """
    if not is_shared_out(model) and not are_equal(list(model.parameters())):
        difference = weights_difference(model)
        raise UsageError(
            f"the weights of the ranks differ by {difference:g} after step {step}, and are not saved: check that all of them "
            "take part in the same backward pass",
            1,
        )


def weights_difference(model: nn.Module) -> float:
    """Return the largest absolute difference between any rank's weights or buffers and those of rank 0: 0.0 if all is well.

    Weights that are shared out are on one rank each. Sparse buffers, such as the edges of a graph, are not looked at.
    """
    largest = 0.0
    for tensor in (*model.parameters(), *model.buffers()):
        if hasattr(tensor, "to_local") or tensor.layout != torch.strided:
            continue
        mine = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        mine = mine if mine.dtype in (torch.float32, torch.float64) else mine.float()
        # In the usual layout, and in types that every backend takes.
        reference = idist.broadcast(mine.clone(memory_format=torch.contiguous_format), src=0)
        assert isinstance(reference, Tensor)
        if mine.numel():
            # What is not a number on both is no difference.
            difference = mine.nan_to_num(nan=6e4) - reference.nan_to_num(nan=6e4)
            largest = max(largest, float(difference.abs().max()))
    return float(idist.all_reduce(largest, "MAX"))
