"""What is measured on the validation set: the same numbers, whatever the number of processes."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ignite.distributed as idist
import torch
from ignite.distributed import utils as idist_utils
from ignite.distributed.comp_models.base import _SerialModel
from ignite.engine import Engine
from ignite.metrics import Metric, MetricsLambda
from ignite.utils import convert_tensor
from torch import Tensor, nn
from torch.utils.data import DataLoader

from . import collectives, early_signals, storage
from .acceleration import accelerate
from .batches import EvaluationBatches, Share, closing, create_loader
from .binding import Objective, bind, load_data
from .checkpoints import load_checkpoint
from .config import Config
from .distributed import backend, hardware
from .engines import AUTOCAST_TYPES, change_tensors, mixed_precision
from .errors import UsageError
from .handlers import significant
from .randomness import seed_step
from .task import objective as task
from .task.model import create_model

logger = logging.getLogger(__package__)

Pair = tuple[Any, Any]
"""outputs of the model and targets of one batch"""


def evaluation(local_rank: int, config: Config, checkpoint: str) -> int:
    """Print the metrics of ``checkpoint`` on the validation set as one line of JSON, from rank 0.

    They are the numbers that the training reported, whatever the number of processes here and there.
    """
    early_signals.forget()
    data = load_data(config)
    batches = EvaluationBatches(len(data.val), idist.get_rank(), idist.get_world_size())
    model = accelerate(create_model(config.task, data), config.train, learns=False).to(idist.device())
    load_checkpoint(Path(checkpoint), {"model": model})
    loader = create_loader(data.val, batches, config.data.num_workers)
    with closing(loader):
        metrics = evaluate(model, loader, config, bind(config.task, data))
    if idist.get_rank() == 0:
        print(storage.to_json({"checkpoint": checkpoint, **metrics}))
    return 0


def evaluate(model: nn.Module, loader: DataLoader[Any], config: Config, objective: Objective) -> dict[str, float]:
    """Return ``val_loss`` and ``val_NAME`` of every metric of the task over all ranks' batches; every rank must call it.

    ``model`` must not be wrapped: the ranks may hold different numbers of batches, and a wrapped model can wait for
    the others in each of them. Its modules are as they were before, in training mode or not.

    Raises:
        UsageError: if a metric is not one number.
    """
    metrics = create_metrics(objective)
    scorer = Engine(lambda engine, pair: pair)
    for name, metric in metrics.items():
        metric.attach(scorer, name)
    batches = loader.batch_sampler
    assert isinstance(batches, EvaluationBatches)
    losses: list[Tensor] = []
    with evaluating(model):
        pairs = predict(model, loader, config, objective, losses)
        apart = batches.reach_every_rank and not any(map(needs_all_samples, metrics.values()))
        if idist.get_world_size() == 1 or apart:
            # To the end of ``pairs``, behind the last of them: there, a rank still serves those with more batches.
            scorer.run(pairs)
        else:
            everyones = gather(pairs)
            device = metrics_device()
            with as_one_process():
                # One after another: the device may not have room for all of them.
                there = (change_tensors(pair, lambda tensor: tensor.to(device)) for pair in everyones)
                scorer.run(there, epoch_length=len(everyones))
    # Weighted by their samples, in double precision.
    sizes = [len(share.indices) for share in batches]
    loss = sum(float(loss) * size for loss, size in zip(losses, sizes, strict=True))
    loss, samples = map(sum, zip(*backend.all_gather_object((loss, sum(sizes))), strict=True))
    values = {name: scorer.state.metrics[name] for name in metrics}
    return {f"val_{name}": one_number(name, value) for name, value in {"loss": loss / samples, **values}.items()}


def write_examples(model: nn.Module, folder: Path, step: int, objective: Objective) -> None:
    """Let the task write what people want to look at, such as what a generator makes, if it has something; from rank 0."""
    if not objective.write_examples or (idist.get_rank() > 0 and not collectives.is_shared_out(model)):
        return
    with tempfile.TemporaryDirectory() as nowhere, evaluating(model), torch.no_grad():
        # Every rank has a part of the weights, and only the files of rank 0 are kept.
        if idist.get_rank() > 0:
            folder = Path(nowhere)
        folder.mkdir(exist_ok=True)
        objective.write_examples(model, folder, step)


def metrics_device() -> torch.device:
    """Return where metrics are computed: sums are kept in float64, on the CPU where the device has none."""
    device = idist.device()
    return torch.device("cpu") if device.type == "xla" else device


def create_metrics(objective: Objective) -> dict[str, Metric]:
    """Return the task's table of metrics.

    Raises:
        UsageError: if the score is not among them, or one has the name of the loss.
    """
    metrics = objective.metrics(metrics_device())
    if "loss" in metrics:
        raise UsageError("a metric of task/objective.py is named loss, as what is minimized: give it another name", 1)
    if task.SCORE not in ("loss", *metrics):
        names = ", ".join(["loss", *metrics])
        raise UsageError(f"SCORE {task.SCORE} of objective.py is not one of its metrics: choose one of {names}", 1)
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            kind = getattr(metric, "__name__", type(metric).__name__)
            raise UsageError(
                f"the metric {name} of task/objective.py is {kind}, and not an object of ignite's Metric: create one of the "
                "class, or give a function to EpochMetric",
                1,
            )
    return metrics


def refuse_metrics_of_many_numbers(outputs: Any, targets: Any, objective: Objective) -> None:
    """Compute the metrics of one batch, so that one which is not a single number is told of now, not after an epoch.

    Raises:
        UsageError: if a metric is not one number.
    """
    for name, metric in create_metrics(objective).items():
        scorer = Engine(lambda engine, pair: pair)
        metric.attach(scorer, name)
        try:
            with as_one_process():
                scorer.run([(outputs, targets)])
        except Exception as error:  # noqa: BLE001 - a batch may be too few samples for it
            said = " ".join(f"{type(error).__name__}: {error}".split())
            ends = "if the whole validation set gives that error too, the first evaluation ends the training"
            logger.warning("the metric %s cannot be computed of the first batch alone (%s): %s", name, said, ends)
        if name in scorer.state.metrics:
            one_number(name, scorer.state.metrics[name])


@torch.no_grad()
def predict(
    model: nn.Module, loader: DataLoader[Any], config: Config, objective: Objective, losses: list[Tensor]
) -> Iterator[Pair]:
    """Yield outputs and targets of this rank's batches, and add the mean loss of each to ``losses``."""
    device = idist.device()
    batch: Any
    for number, batch in enumerate(loader):
        # What a model draws in an evaluation depends on the batch, not on who evaluates it.
        seed_step(0, 0, idist.get_rank() + number * idist.get_world_size())
        batch = convert_tensor(batch, device, non_blocking=True)
        outputs, targets = answer(model, batch, config, objective)
        losses.append(objective.loss(outputs, targets))
        if metrics_device() != device:
            # Else the device would compute the outputs now, and all batches once more at the end, for their losses.
            hardware.synchronize()
        yield outputs, targets
    batches = loader.batch_sampler
    assert isinstance(batches, EvaluationBatches)
    if collectives.is_shared_out(model):
        # Ranks with a batch more need this one's part of the weights.
        for _ in range(len(batches), batches.most):
            answer(model, convert_tensor(loader.dataset.__getitems__(Share(-1, [0])), device), config, objective)


def answer(model: nn.Module, batch: Any, config: Config, objective: Objective) -> Pair:
    """Return outputs and targets of one batch, computed in the type that ``train.amp`` names, the outputs in float32 again."""
    outputs: Any
    with mixed_precision(config):
        outputs, targets = objective.forward(model, batch)
    if dtype := AUTOCAST_TYPES[config.train.amp]:
        outputs = change_tensors(outputs, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor)
    return outputs, targets


def gather(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs of all ranks on the CPU, in the order in which one process would have them."""
    mine: list[Any] = [change_tensors(pair, Tensor.cpu) for pair in pairs]
    everyones = backend.all_gather_object(mine)
    # The batches were dealt in turn.
    return [pair for pair in chain.from_iterable(zip_longest(*everyones)) if pair is not None]


def needs_all_samples(part: Any) -> bool:
    """Tell whether a metric is right only where it sees the samples of all ranks.

    True for a metric that keeps samples in a list, which ignite gathers only if each rank has the same number of them (a list
    of something else does no harm), and for one whose own ``compute`` lacks ignite's decorator ``sync_all_reduce``, without
    which it would be that of one rank.
    """
    if isinstance(part, MetricsLambda):
        # Its list of arguments is no samples, but a metric among them may keep some.
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
    """Let metrics compute inside the ``with`` block as if this process were the only one.

    Some cannot do otherwise on a rank without samples, or on ranks with different numbers of them. Others, such as those of
    torchmetrics, ask torch whether there are more processes, and would add up what each of them has seen in full.
    """
    model, need_to_sync = idist_utils._model, idist_utils._need_to_sync
    idist_utils._model, idist_utils._need_to_sync = _SerialModel(), False
    try:
        with patch.object(torch.distributed, "is_initialized", return_value=False):
            yield
    finally:
        idist_utils._model, idist_utils._need_to_sync = model, need_to_sync


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode; afterwards, each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    # These may do more than set a flag, such as merge weights of low rank into others, and take them out again, but for rounding.
    own = [module for module, _ in modes if type(module).train is not nn.Module.train]
    kept = [(weight, weight.detach().clone()) for module in own for weight in module.parameters(recurse=False)]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for weight, before in kept:
            weight.data.copy_(before)
        for module, training in modes:
            module.training = training


def one_number(name: str, value: Any) -> float:
    """Return ``value`` to six significant figures.

    Raises:
        UsageError: if it is more than one number.
    """
    try:
        return significant(float(value))
    except (TypeError, ValueError, RuntimeError):
        found = " ".join(str(value).split())
        raise UsageError(
            f"the metric {name} is not one number but {found:.80}: average it in objective.py", 1
        ) from None
