"""zero1: each rank holds the optimizer's state of some weights, updates these, and broadcasts them."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import ignite.distributed as idist
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from ...runtime import Run


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """A ZeroRedundancyOptimizer whose state in a checkpoint is that of the optimizer without shards."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks on rank 0. Every rank must call it."""
        self.consolidate_state_dict(to=0)
        state: dict[str, Any] = super().state_dict() if idist.get_rank() == 0 else {}
        self._all_state_dicts: list[Any] = []
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this rank's part of the state of all weights."""
        super().load_state_dict({**state_dict, "state": dict(state_dict["state"])})
        # torch keeps a second copy here, and moves counts of steps to the CPU, where fused kernels cannot read them.
        self.state.clear()
        self.optim.load_state_dict(self.optim.state_dict())


def shard(optimizer: torch.optim.Optimizer) -> ShardedOptimizer:
    """Return an optimizer with the same groups, whose state is sharded over all ranks."""
    kind, groups = type(optimizer), optimizer.param_groups
    # Some classes keep more defaults than their constructor takes.
    names = inspect.signature(kind).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in names}
    # Buckets would change the layout of weights that are not contiguous, and fused kernels then misread gradients.
    contiguous = all(weight.is_contiguous() for group in groups for weight in group["params"])
    return ShardedOptimizer(groups, kind, parameters_as_bucket_view=contiguous, **settings)


def shard_optimizers(run: Run) -> None:
    """Replace each optimizer of the step by a sharded one, also in its schedule."""
    # torch warns that the schedule was created for another optimizer.
    warnings.filterwarnings("ignore", "Seems like `optimizer.step")
    owned = vars(run.state["step"])
    holders = [owned, *(value for value in owned.values() if isinstance(value, dict))]
    parts = [part for holder in holders for part in holder.values()]
    sharded = {id(part): shard(part) for part in parts if isinstance(part, torch.optim.Optimizer)}
    for holder in holders:
        holder.update({name: sharded[id(part)] for name, part in holder.items() if id(part) in sharded})
    for part in parts:
        if id(getattr(part, "optimizer", None)) in sharded:
            part.optimizer = sharded[id(part.optimizer)]
