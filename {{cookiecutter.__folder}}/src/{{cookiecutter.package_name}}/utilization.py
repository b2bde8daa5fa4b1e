"""How much a training computes, beside what its device could: what is called the utilization of model FLOPs."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Any

import ignite.distributed as idist
import torch
from ignite.utils import convert_tensor
from torch import nn

from .acceleration import keeping_buffers
from .binding import Objective
from .config import Config
from .distributed import hardware
from .engines import AUTOCAST_TYPES
from .evaluation import evaluating
from .failures import in_one_line

logger = logging.getLogger(__package__)

# A backward pass computes a product for the inputs and one for the weights, where the forward pass computes one.
PASSES = 3
# Rows and columns of the matrices whose product shows what a device can do, and for how long to compute it: as large as it
# takes for many products in this time.
SMALLEST, LARGEST = 1024, 8192
SECONDS = 0.3


def step_flops(model: nn.Module, config: Config, objective: Objective, batch: Any) -> int:
    """Return the floating-point operations of this rank's step by ``batch``: those of products and convolutions.

    Operators that torch does not know, such as somebody's own kernels, count as none. So does all of a task with several
    losses, whose steps are its own, and all of a model that torch's counter does not take.
    """
    if objective.losses:
        return 0
    # Imported here, as it warns where Triton is missing, also of trainings that are not profiled.
    from torch.utils.flop_counter import FlopCounterMode
    from torch.utils.module_tracker import ModuleTracker

    class Untracked(ModuleTracker):
        """Does not tell modules apart, for which torch would refuse one that is given a parameter."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    # What is compiled is not counted.
    eager = torch.compiler.set_stance("force_eager") if config.train.compile else nullcontext()
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = Untracked()
    try:
        with counter, evaluating(model), keeping_buffers(model), torch.no_grad(), eager:
            objective.forward(model, convert_tensor(batch, idist.device()))
    except Exception as error:  # noqa: BLE001 - the model itself has just trained with this batch
        logger.warning("operations are not counted: torch's counter does not take this model: %s", in_one_line(error))
        return 0
    return PASSES * int(counter.get_total_flops())


def peak_flops(config: Config) -> float:
    """Return the floating-point operations in a second of a product of large matrices; all ranks measure at once."""
    size = SMALLEST
    while size < LARGEST and _seconds_of_product(size, config) < SECONDS / 100:
        size *= 2
    return 2 * size**3 / _seconds_of_product(size, config)


def _seconds_of_product(size: int, config: Config) -> float:
    matrix = torch.randn(size, size, device=idist.device(), dtype=AUTOCAST_TYPES[config.train.amp])
    product = matrix @ matrix
    hardware.synchronize()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        torch.matmul(matrix, matrix, out=product)
        hardware.synchronize()
        count += 1
    return (time.perf_counter() - started) / count
