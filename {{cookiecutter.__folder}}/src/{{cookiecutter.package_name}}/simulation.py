"""One rank of a world that is not there: does its step work, and how much memory does it need? ``scaling --simulate``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.table import Table
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd.graph import saved_tensors_hooks

from . import storage
from .acceleration import accelerate, blocks_of
from .batches import Reader, Share
from .binding import Objective, bind, load_data
from .checks import batch_check, require
from .collectives import local
from .config import Config
from .distributed import transport
from .engines import AUTOCAST_TYPES, change_tensors, cut, loss_of
from .errors import UsageError
from .optimization import create_optimizer
from .tables import print_table
from .task.model import create_model

# Those that share something out.
SHARING = ("zero1", "fsdp2")
# What torch says of operators that need the numbers of a tensor, or of which it does not know what they return.
NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


class Needed(NamedTuple):
    """The memory that a rank needs for a step, in MiB."""

    strategy: str
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """what fsdp2 holds as a whole: weights and gradients of the largest part of the model, and the weights of the next"""
    activations: float
    """what the backward pass needs of the forward pass"""

    def together(self) -> float:
        """Return the sum."""
        return sum(self[1:])


def simulate(config: Config, world_size: int) -> int:
    """Take a step of rank 0 of so many without memory for a single number; print and write what it would need.

    Raises:
        UsageError: if the settings do not suit so many ranks, or the step needs numbers, which are not there.
    """
    data = load_data(config)
    require([batch_check(config.data.batch_size, [world_size], config.optim.accumulation_steps)])
    folder = Path(config.train.run_dir)
    storage.open_folder(folder)
    objective = bind(config.task, data)
    if objective.losses:
        raise UsageError("a task with several losses cannot be simulated: its step is its own", 1)
    # So large a world may take more samples in a step than there are for a trial: this rank's are enough.
    mine = Share(0, [index % len(data.train) for index in range(config.data.batch_size // world_size)])
    batch = cut(Reader(data.train, config.train.seed).__getitems__(mine), 0, config.optim.accumulation_steps)
    strategies = ["ddp", *(strategy for strategy in SHARING if strategy in transport.STRATEGIES)]
    try:
        with world_of(world_size):
            rows = []
            for strategy in strategies:
                try:
                    rows.append(take_step(config, data, objective, batch, strategy, world_size))
                except UsageError as error:
                    if not rows:
                        raise
                    print(f"{strategy}: {error}")
            # Whatever is shared out, these are not; with fsdp2, gathered weights would be counted among them.
            rows = [row._replace(activations=rows[0].activations) for row in rows]
    except NEEDS_NUMBERS as error:
        reason = f"the step needs the numbers of its tensors ({error.func}), which a simulation does not have"
        raise UsageError(f"{reason}: measure it on this machine, by scaling without --simulate", 1) from None
    names = (*Needed._fields, "together")
    storage.write_table(folder / "simulated.csv", names, ((*row, row.together()) for row in rows))
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for row in rows:
        table.add_row(row.strategy, *(f"{value:.4g}" for value in (*row[1:], row.together())))
    print_table(table)
    share = config.data.batch_size // world_size
    print(f"MiB on each of {world_size} ranks, for a step of {share} samples; what torch itself needs comes on top")
    return 0


@contextmanager
def world_of(world_size: int) -> Iterator[None]:
    """Let this process be rank 0 of so many inside the ``with`` block; what it exchanges goes nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def take_step(config: Config, data: Any, objective: Objective, batch: Any, strategy: str, world_size: int) -> Needed:
    """Return what a step needs by this strategy."""
    sharding: Any = importlib.import_module(f"{__package__}.sharding") if strategy in SHARING else None
    mesh = sharding.mesh_of("cpu", world_size) if strategy == "fsdp2" else None
    gathered = 0.0
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model: nn.Module = create_model(config.task, data).train()
        again = list(blocks_of(model)) if config.train.activation_checkpointing else []
        model = accelerate(model, replace(config.train, compile=False))
        if mesh is not None:
            sizes = sorted(sharding.sizes_of_parts(model), reverse=True)
            gathered = 2 * sizes[0] + (sizes[1] if len(sizes) > 1 else 0)
            sharding.share_out_weights(model, mesh)
        optimizer = create_optimizer(model, config, world_size)
        keeps: Any = optimizer
        if strategy == "zero1":
            optimizer = sharding.share_out_state(optimizer)
            keeps = optimizer.optim
        inputs = change_tensors(batch, fake.from_tensor)
        dtype = AUTOCAST_TYPES[config.train.amp]
        with counted_activations(model, again) as activations, torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = loss_of(model, inputs, objective)
        loss.backward()
        parts = {
            "weights": sum(local(tensor).nbytes for tensor in (*model.parameters(), *model.buffers())),
            "gradients": sum(local(weight.grad).nbytes for weight in model.parameters() if weight.grad is not None),
        }
        # With zero1, its part alone: older torches cannot simulate what follows, which hands the weights on.
        keeps.step()
        states = (value for state in keeps.state.values() for value in state.values() if isinstance(value, Tensor))
        parts["optimizer"] = sum(local(value).nbytes for value in states)
    return Needed(strategy, *(size / 2**20 for size in (*parts.values(), gathered, sum(activations.values()))))


@contextmanager
def counted_activations(model: nn.Module, again: list[nn.Module]) -> Iterator[dict[int, int]]:
    """Yield a dictionary that gets the bytes of each tensor that is kept for the backward pass, weights aside.

    Args:
        again: modules that keep only their inputs, as they are computed again.
    """
    found: dict[int, int] = {}
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory._cdata not in weights:
            found[memory._cdata] = memory.nbytes()
        return tensor

    for module in again:
        module.register_forward_pre_hook(lambda module, inputs: change_tensors(inputs, keep))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found
