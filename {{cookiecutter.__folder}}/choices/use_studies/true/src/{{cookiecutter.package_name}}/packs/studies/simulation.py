"""The memory of one rank of a world that does not exist: ``scaling --simulate``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import ignite.distributed as idist
import torch.distributed as dist
from ignite.distributed.comp_models.native import _NativeDistModel
from ignite.engine import Engine
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...config import Config
from ...runtime import Task, UsageError, distribute
from ...runtime.data import Share
from ...runtime.data.loader import Reader
from ...runtime.process import start
from ...runtime.process.start import setting_checks
from ...runtime.report import require
from ...step import TrainStep
from ...task import load_task
from . import trials

TITLES = ("strategy", "weights", "gradients", "optimizer", "activations", "total")
# Operators whose result depends on the values of a tensor, which do not exist here.
NEEDS_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


def simulate(config: Config, world_size: int) -> int:
    """Print and write the MiB that rank 0 of ``world_size`` needs for a step; nothing is allocated or trained.

    Raises:
        UsageError: if the batch does not suit the world size, or the step needs values, which do not exist.
    """
    require(setting_checks(config, [world_size]))
    task, share = load_task(config.task), config.data.batch_size // world_size
    # The global batch may be larger than the training set.
    indices = [index % len(task.train) for index in range(share)]
    batch = Reader(task.train, 0, task.collate).__getitems__(Share(0, indices))
    strategies = dict.fromkeys(("ddp", getattr(config.distributed, "strategy", "ddp")))
    try:
        with world_of(world_size):
            rows = [(strategy, *memory_of(config, task, batch, strategy)) for strategy in strategies]
    except NEEDS_VALUES as error:
        reason = f"the step reads values of its tensors ({error.func}), which do not exist here"
        raise UsageError(f"{reason}. Leave --simulate out to measure it.", 1) from None
    trials.write_table(Path(config.train.run_dir) / "simulated.csv", TITLES, rows)
    trials.print_table(TITLES, rows)
    print(f"MiB on each of {world_size} ranks, for a step of {share} samples on each")
    return 0


@contextmanager
def world_of(world_size: int) -> Iterator[None]:
    """Make this process rank 0 of ``world_size`` inside the ``with`` block; its communication does nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # ignite would use a GPU, and count the processes of a node over gloo.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
    with patch.object(_NativeDistModel, "_compute_nproc_per_node", lambda self: 1):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        idist.set_local_rank(0)
        idist.sync()
        try:
            yield
        finally:
            idist.finalize()


def memory_of(config: Config, task: Task, batch: Any, strategy: str) -> list[float]:
    """Return the MiB of weights, gradients, optimizer state, activations at their peak, and all together.

    Takes two steps, because the first creates the state of the optimizer.
    """
    if strategy != "ddp":
        start.configure_packs(config)
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as fake, LivingTensors() as living:
        model = wrapped = task.create_model().train()
        if strategy in ("ddp", "zero1"):
            # DistributedDataParallel refuses fake tensors. Its buckets are the gradients, so it needs nothing else.
            model.averages_gradients = True  # type: ignore[assignment]
        else:
            wrapped = distribute(model)
        step = TrainStep(wrapped, task, config, steps_per_epoch=1, steps=2)
        if strategy == "zero1":
            zero1: Any = import_module("...strategies.zero1", __name__)
            zero1.shard_optimizers(SimpleNamespace(state={"step": step}))
        inputs, engine = pytree.tree_map_only(Tensor, fake.from_tensor, batch), Engine(lambda engine, batch: None)
        engine.state.iteration = 1
        step(engine, inputs)
        optimizers = [part for part in pytree.tree_leaves(vars(step)) if isinstance(part, Optimizer)]
        # zero1 keeps its shard in an optimizer of its own.
        states = [dict(getattr(optimizer, "optim", optimizer).state) for optimizer in optimizers]
        state = size_of(pytree.tree_leaves(states))
        average = step.average.model.parameters() if step.average else []
        weights = size_of([*model.parameters(), *model.buffers(), *average])
        living.model = model
        step(engine, inputs)
        parts = (weights, gradients_of(model), state, living.peak - weights - state)
    return [size / 2**20 for size in (*parts, sum(parts))]


class LivingTensors(TorchDispatchMode):
    """Knows the memory of the tensors that were created inside its ``with`` block and still exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories: WeakSet[Any] = WeakSet()
        self.model: nn.Module | None = None
        self.peak = 0
        """bytes of everything except the gradients of ``model``, since that was set"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count what it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            # It calls this again with its local tensors.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.memories.update(leaf.untyped_storage() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        if self.model:
            size = sum(memory.nbytes() for memory in self.memories)
            self.peak = max(self.peak, size - gradients_of(self.model))
        return result


def gradients_of(model: nn.Module) -> int:
    """Return the bytes of the gradients of a model."""
    return size_of([weight.grad for weight in model.parameters()])


def size_of(values: list[Any]) -> int:
    """Return the bytes of the tensors among values; of a sharded tensor, those of this rank."""
    tensors = (value for value in values if isinstance(value, Tensor))
    return sum(tensor.to_local().nbytes if isinstance(tensor, DTensor) else tensor.nbytes for tensor in tensors)
