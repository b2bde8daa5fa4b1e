"""local-sgd: ranks train independently; weights and optimizer state are averaged every ``distributed.average_every`` steps.

Stich, "Local SGD converges fast and communicates little" (2019).
"""

from __future__ import annotations

import zlib
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Events
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...runtime import Run, UsageError
from ...runtime.process import collectives, exchange

# Tensors averaged at a time, to need less memory.
CHUNK = 32


def separate(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model itself, whose gradients stay on their rank."""
    for module in model.modules():
        module.averages_gradients = True  # type: ignore[assignment]
    return model


def attach(run: Run) -> None:
    """Average every ``distributed.average_every`` steps, and before each checkpoint."""
    averaged = 0

    def average_once() -> None:
        nonlocal averaged
        if averaged != run.iteration:
            averaged = run.iteration
            average(run)

    every = run.settings.distributed.average_every
    run.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), average_once)
    run.before_save.append(average_once)


@torch.no_grad()
def average(run: Run) -> None:
    """Average the model, its moving average and the state of the step over the ranks. Every rank must call it.

    Raises:
        UsageError: if the ranks have different tensors there.
    """
    parts = {name: part.state_dict() for name, part in run.state.items() if name in ("model", "average", "step")}
    leaves = pytree.tree_flatten_with_path(parts)[0]
    named = [
        (path, leaf)
        for path, leaf in leaves
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]
    layout = str([(path, leaf.shape, leaf.dtype) for path, leaf in named])
    if len(set(exchange.all_gather_object(zlib.crc32(layout.encode())))) > 1:
        what = (
            f"the ranks have different optimizer states after step {run.iteration}, as if one did not use every weight"
        )
        raise UsageError(f"{what}. Set distributed.strategy ddp.", 1)
    for dtype in dict.fromkeys(leaf.dtype for _, leaf in named):
        same = [leaf for _, leaf in named if leaf.dtype == dtype]
        for tensors in (same[start : start + CHUNK] for start in range(0, len(same), CHUNK)):
            # Some optimizers count their steps on the CPU.
            means = [tensor.to(idist.device()) for tensor in tensors]
            exchange.average(means)
            torch._foreach_copy_(tensors, means)
    if scaler := getattr(run.state["step"], "scaler", None):
        scaler.load_state_dict(collectives.from_rank_zero(scaler.state_dict()))
