"""What an Engine runs: the frame of a step, and metrics over the samples of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain, zip_longest
from typing import Any
from unittest.mock import patch

import ignite.distributed as idist
import torch
from ignite.distributed import utils as idist_utils
from ignite.distributed.comp_models.base import _SerialModel
from ignite.engine import Engine, Events
from ignite.metrics import Metric, MetricsLambda
from ignite.utils import convert_tensor
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from .data import EvaluationBatches, TrainBatches, seed_step
from .process import exchange, hardware
from .report import UsageError, logger
from .report.log import significant
from .task import Task

AUTOCAST_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Prediction = tuple[Any, Any, Tensor | None]
"""outputs, targets and mean loss of a batch; None if an evaluation has no loss"""


def prepare_model(model: nn.Module, compiled: bool = False) -> nn.Module:
    """Return the model in train mode on this rank's device.

    Args:
        compiled: whether to compile its forward pass with torch.compile.
    """
    resting = sum(not module.training for module in model.modules())
    model = model.train().to(idist.device())
    if resting := resting - sum(not module.training for module in model.modules()):
        logger.info(
            "%s modules were in eval mode and are now in train mode; to keep one frozen, override its train()", resting
        )
    if compiled:
        # nn.Module.compile does nothing for classes of torch such as nn.Sequential. A copy of the model has a copy of this.
        model.forward = partial(torch.compile(_call), model.forward)
    return model


def _call(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return forward(*arguments, **options)


def create_trainer(step: Callable[[Engine, Any], dict[str, Tensor]], loader: DataLoader[Any], seed: int) -> Engine:
    """Return an Engine that calls ``step`` with each batch on the device.

    Random numbers follow from (seed, rank, iteration), and the samples of a pass from the iteration, so a resumed run
    continues exactly, however the step is written.
    """
    rank, device, batches = idist.get_rank(), idist.device(), loader.batch_sampler

    def process(engine: Engine, batch: Any) -> dict[str, Tensor]:
        seed_step(seed, rank, engine.state.iteration)
        output = step(engine, convert_tensor(batch, device, non_blocking=True))
        hardware.end_step()
        return output

    trainer = Engine(process)

    @trainer.on(Events.EPOCH_STARTED)
    def seek() -> None:
        assert isinstance(batches, TrainBatches)
        batches.start_at(trainer.state.iteration)

    @trainer.on(Events.EXCEPTION_RAISED)
    def note_step(engine: Engine, error: Exception) -> None:
        error.step = trainer.state.iteration  # type: ignore[attr-defined]
        raise error

    return trainer


def mixed_precision(amp: str) -> AbstractContextManager[object]:
    """Compute in the type that ``train.amp`` names, inside the ``with`` block."""
    dtype = AUTOCAST_TYPES[amp]
    return torch.autocast(idist.device().type, dtype) if dtype else nullcontext()


def split(batch: Any, parts: int) -> list[Any]:
    """Return ``parts`` micro-batches: every ``parts``-th sample of each tensor and of each list of texts.

    Raises:
        UsageError: if tensors or lists of texts differ in length, so that samples cannot be told apart.
    """
    if parts == 1:
        return [batch]
    is_texts: Callable[[Any], bool] = lambda part: isinstance(part, list) and bool(part) and isinstance(part[0], str)
    leaves, structure = pytree.tree_flatten(batch, is_leaf=is_texts)
    lengths = {len(leaf) for leaf in leaves if is_texts(leaf) or (isinstance(leaf, Tensor) and leaf.dim())}
    if len(lengths) != 1 or max(lengths) % parts:
        raise UsageError(
            f"optim.accumulation_steps {parts} cannot split a batch whose tensors have {sorted(lengths)} rows. Put the samples "
            "first in each tensor, or set it to 1.",
            1,
        )

    def part_of(leaf: Any, part: int) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf[part::parts].contiguous()
        return leaf[part::parts] if is_texts(leaf) else leaf

    return [pytree.tree_unflatten([part_of(leaf, part) for leaf in leaves], structure) for part in range(parts)]


def compute_metrics(
    step: Callable[[nn.Module, Any], Prediction], model: nn.Module, loader: DataLoader[Any], task: Task
) -> dict[str, float]:
    """Return the mean loss, if any, and every metric over the samples of all ranks, each counted once.

    Every rank must call it.

    Args:
        step: from the model, in eval mode, and a batch on the device to outputs, targets and their mean loss.
        model: not wrapped. Each of its modules is in the mode it was in afterwards.

    Raises:
        UsageError: if a metric is not a single number.
    """
    batches = loader.batch_sampler
    assert isinstance(batches, EvaluationBatches)
    scorer, metrics = Engine(lambda engine, pair: pair), task.metrics(metrics_device())
    for name, metric in metrics.items():
        if name == "loss" or not isinstance(metric, Metric):
            raise UsageError(
                f"metric {name} of the task is not an ignite Metric, or is named loss. Return Metric objects.", 1
            )
        metric.attach(scorer, name)
    losses: list[Tensor | None] = []
    with evaluating(model):
        pairs = predict(step, model, loader, losses)
        if idist.get_world_size() == 1 or (
            batches.reach_every_rank and not any(map(needs_all_samples, metrics.values()))
        ):
            scorer.run(pairs)
        else:
            gathered = gather(pairs)
            with as_one_process():
                device = metrics_device()
                moved = (pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), pair) for pair in gathered)
                scorer.run(moved, epoch_length=len(gathered))
    # Weighted by samples; fsum does not depend on the order.
    sized = zip(losses, batches.sizes, strict=True)
    mine = [float(loss) * size for loss, size in sized if loss is not None]
    everyones = [*chain.from_iterable(exchange.all_gather_object(mine))]
    values = {"loss": math.fsum(everyones) / batches.size} if everyones else {}
    values |= {name: scorer.state.metrics[name] for name in metrics}
    return {name: one_number(name, value) for name, value in values.items()}


def predict(
    step: Callable[[nn.Module, Any], Prediction], model: nn.Module, loader: DataLoader[Any], losses: list[Tensor | None]
) -> Iterator[tuple[Any, Any]]:
    """Yield outputs and targets of this rank's batches, and add their losses to ``losses``."""
    device, batches = idist.device(), loader.batch_sampler
    assert isinstance(batches, EvaluationBatches)
    batch: Any
    for number, batch in enumerate(loader):
        # Random numbers depend on the batch, not on the rank that evaluates it.
        seed_step(0, 0, idist.get_rank() + number * idist.get_world_size())
        outputs, targets, loss = step(model, convert_tensor(batch, device, non_blocking=True))
        if number < len(batches.sizes):
            losses.append(None if loss is None else loss.detach())
            if metrics_device() != device:
                # XLA would otherwise compute all batches once more for their losses.
                hardware.synchronize()
            yield in_float32(outputs), targets


def in_float32(outputs: Any) -> Any:
    """Return outputs with half-precision tensors in float32, as metrics expect them."""
    half = (torch.bfloat16, torch.float16)
    return pytree.tree_map_only(
        Tensor, lambda tensor: tensor.float() if tensor.dtype in half else tensor.detach(), outputs
    )


def metrics_device() -> torch.device:
    """Return the device of metrics, which sum in float64: the CPU for XLA."""
    return torch.device("cpu") if idist.device().type == "xla" else idist.device()


def gather(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the pairs of all ranks on the CPU, in the order in which one process would have them."""
    everyones = exchange.all_gather_object([pytree.tree_map_only(Tensor, Tensor.cpu, pair) for pair in pairs])
    # Batches were dealt in turn.
    return [pair for pair in chain.from_iterable(zip_longest(*everyones)) if pair is not None]


def needs_all_samples(part: Any) -> bool:
    """Return whether a metric is right only if it sees the samples of all ranks.

    True for metrics that keep samples in a list, and for those whose ``compute`` lacks ignite's ``sync_all_reduce``.
    """
    if isinstance(part, MetricsLambda):
        return any(map(needs_all_samples, (*part.args, *part.kwargs.values())))
    if isinstance(part, Metric):
        compute = type(part).compute
        adds_up = compute.__module__.startswith("ignite.") or hasattr(compute, "_decorated")
        return not adds_up or any(map(needs_all_samples, vars(part).values()))
    if isinstance(part, tuple | dict):
        return any(map(needs_all_samples, part.values() if isinstance(part, dict) else part))
    return isinstance(part, list)


@contextmanager
def as_one_process() -> Iterator[None]:
    """Compute metrics as if this process were the only one: the samples of all ranks are here."""
    model, need_to_sync = idist_utils._model, idist_utils._need_to_sync
    idist_utils._model, idist_utils._need_to_sync = _SerialModel(), False
    try:
        # torchmetrics asks torch itself.
        with patch.object(torch.distributed, "is_initialized", return_value=False):
            yield
    finally:
        idist_utils._model, idist_utils._need_to_sync = model, need_to_sync


def one_number(name: str, value: Any) -> float:
    """Return ``value`` to six significant figures.

    Raises:
        UsageError: if it is more than one number.
    """
    try:
        return significant(float(value))
    except (TypeError, ValueError, RuntimeError):
        found = " ".join(str(value).split())
        raise UsageError(f"metric {name} is {found:.80}, not one number. Average it in objective.py.", 1) from None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode; afterwards each module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training
