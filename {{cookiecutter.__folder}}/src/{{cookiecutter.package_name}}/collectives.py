"""What the ranks agree on; every rank has to run each of these at the same point."""

from __future__ import annotations

from collections.abc import Callable

import ignite.distributed as idist
import torch
from torch import Tensor, nn

from .errors import UsageError


def all_reduce_any(flag: bool) -> bool:
    """Tell every rank whether ``flag`` is true on one of them."""
    return bool(idist.all_reduce(float(flag), "MAX"))


def local_rank_zero_first(action: Callable[[], object], what: str) -> None:
    """Run ``action`` in the first process of each node while the others wait; rank 0 is done before other nodes begin.

    Raises:
        UsageError: on every rank, if the action failed on one of them.
    """
    rank = idist.get_rank()
    # Nodes often share their file system, and would write the same files at the same time.
    for turn in (rank == 0, rank > 0 and idist.get_local_rank() == 0):
        failure = ""
        if turn:
            try:
                action()
            except (OSError, RuntimeError) as error:
                failure = f"{type(error).__name__}: {error}"
        if all_reduce_any(bool(failure)):
            raise UsageError(f"could not {what}: {failure or 'it failed on another node'}", 1)


def weights_difference(model: nn.Module) -> float:
    """Return the largest absolute difference between any rank's weights and those of rank 0: 0.0 if all is well."""
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    reference = idist.broadcast(weights.clone(), src=0)
    assert isinstance(reference, Tensor)
    return float(idist.all_reduce(float((weights - reference).abs().max()), "MAX"))
