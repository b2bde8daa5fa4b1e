"""The command ``check``: does a step of your task keep what makes results independent of the number of processes?"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.utils import convert_tensor, manual_seed
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

from ...config import Config
from ...evaluate import evaluate
from ...runtime import (
    Task,
    UsageError,
    create_loaders,
    create_trainer,
    distribute,
    mixed_precision,
    prepare_model,
    split,
)
from ...runtime.data import EvaluationBatches, seed_step, used_rng
from ...runtime.data.loader import Reader, create_loader
from ...runtime.engine import evaluating
from ...runtime.process import collectives, exchange, hardware
from ...runtime.report.summary import fingerprint
from ...step import TrainStep
from ...task import load_task

LEVELS = ("ok", "note", "fix")
# Larger outputs get no noise, which would take more than a second.
MOST_OUTPUTS = 10**7


class Finding(NamedTuple):
    """What one check found; the status is one of ``LEVELS``."""

    status: str
    name: str
    text: str


def check(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Print one line for each check; return 1 if a promise is broken."""
    # This process prints the error itself.
    logging.getLogger("ignite.engine").setLevel(logging.CRITICAL)
    task = load_task(config.task)
    manual_seed(config.train.seed)
    model = prepare_model(task.create_model())
    findings = [check_samples(task, config)]
    if lazy := [name for name, weight in model.named_parameters() if isinstance(weight, UninitializedParameter)]:
        text = f"{lazy[0]} has no shape yet, as in nn.LazyLinear; run the model on one sample in create_model"
        return report([*findings, Finding("fix", "weights", text)])
    loader, _ = create_loaders(task, config)
    step = TrainStep(distribute(model), task, config, len(loader), len(loader) * config.train.epochs)
    trainer = create_trainer(step, loader, config.train.seed)
    findings += check_step(lambda: trainer.run(loader, max_epochs=1, epoch_length=1), trainer, model, config)
    batch: Any = trainer.state.batch
    batch = convert_tensor(batch, idist.device())
    with evaluating(model):
        findings += check_loss(task, model, config, split(batch, config.optim.accumulation_steps)[0])
    findings.append(check_metrics(task, model, config))
    return report(findings)


def report(findings: list[Finding]) -> int:
    """Print the worst finding of all ranks for each check; return the exit code. Every rank must call it."""
    worst: dict[str, Finding] = {}
    for rank, everyones in enumerate(exchange.all_gather_object(findings)):
        for status, name, text in everyones:
            if name not in worst or LEVELS.index(status) > LEVELS.index(worst[name].status):
                worst[name] = Finding(status, name, f"rank {rank}: {text}" if rank else text)
    broken = [finding for finding in worst.values() if finding.status == "fix"]
    if idist.get_rank() == 0:
        for status, name, text in worst.values():
            print(f"{status:4} {name:10} {text}")
        print(f"\nto fix: {len(broken)}; see docs/diagnosis.md" if broken else "\nThe task keeps its promises.")
    return int(bool(broken))


def verdict(good: bool, name: str, text: str, otherwise: str, status: str = "fix") -> Finding:
    """Return a finding that is ok if ``good``."""
    return Finding("ok", name, text) if good else Finding(status, name, otherwise)


def check_samples(task: Task, config: Config) -> Finding:
    """Compare samples that are read twice, and on all ranks. Every rank must call it."""
    readers = [(Reader(one, config.train.seed, task.collate), len(one)) for one in (task.train, *task.val.values())]
    first, again = ([fingerprint(*reader) for reader in readers] for _ in range(2))
    same = collectives.from_rank_zero(first) == first
    text = "a sample differs when it is read again; use the global generators of torch, NumPy or Python"
    if first == again:
        text = "others than on rank 0; load in task/data.py must return the same on every rank"
    return verdict(same and first == again, "samples", "the same when read again, and on every rank", text)


def check_step(run: Callable[[], object], trainer: Engine, model: nn.Module, config: Config) -> Iterator[Finding]:
    """Compare the model before and after one step of step.py, which ``run`` takes. Every rank must call it."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shapes, draws = shapes_of(model), []
    reseed = partial(seed_step, config.train.seed, idist.get_rank(), 1)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: draws.append(used_rng(reseed, idist.device())))
    run()
    values: Any = trainer.state.output
    wrong = [name for name, value in values.items() if value.numel() != 1 or not value.isfinite()]
    good = ", ".join(f"{name} {float(value):.4g}" for name, value in values.items() if name not in wrong)
    yield verdict(not wrong, "step", good, f"{first_of(wrong)} is not one finite number")
    changed = first_of(sorted(dict(shapes.items() ^ shapes_of(model).items())))
    text = f"the step changed {changed} in the model's state_dict; create it with its final shape in create_model"
    yield verdict(not changed, "shapes", "the step keeps those of the model's state_dict", text)
    if changed:
        return
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    # A step may remove the gradients of weights that it has changed.
    lost = [name for name, weight in weights.items() if weight.grad is None and weight.equal(before[name])]
    text = f"{first_of(lost)} got no gradient; use it in forward, or set requires_grad False"
    yield verdict(not lost, "weights", f"each of {len(weights)} got a gradient", text)
    floats = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and name in before}
    moved = first_of([name for name, buffer in floats.items() if not buffer.equal(before[name])])
    text = f"{moved} changed, as in BatchNorm; results depend on the number of processes"
    yield verdict(not moved, "buffers", "the step changed none", text, "note")
    if hardware.SHOWS_RNG_USE:
        text = "the step uses some, as in dropout; results depend on the number of processes"
        yield verdict(not draws[0], "random", "the step uses no random numbers", text, "note")
    same = len(set(exchange.all_gather_object(collectives.weights_digest(model)))) == 1
    text = "the weights differ after the step; take the same backward passes on every rank, and average gradients"
    yield verdict(same, "ranks", "equal weights after the step", text)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight and buffer by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def check_loss(task: Task, model: nn.Module, config: Config, batch: Any) -> Iterator[Finding]:
    """Compare the loss and the gradients of a batch with the means of its halves; the model is in eval mode."""
    tolerance = 1e-3 if config.train.amp == "none" else 5e-2
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def compute(batch: Any) -> tuple[Any, Any, Tensor]:
        with mixed_precision(config.train.amp):
            outputs, targets = task.forward(model, batch)
            return outputs, targets, task.loss(outputs, targets)

    def gradient(loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten().float() for part in parts])

    reseed = partial(seed_step, config.train.seed, 0, 0)
    reseed()
    outputs, targets, loss = compute(batch)
    draws = hardware.SHOWS_RNG_USE and used_rng(reseed, idist.device())
    if loss.dim() or not loss.requires_grad:
        yield Finding("fix", "loss", f"has shape {tuple(loss.shape)}; return one number with a gradient")
        return
    yield check_broadcasting(task, outputs, targets)
    pairs: list[tuple[float, float]] = []
    try:
        pairs.append(loss_of_halves(task, outputs, targets))
        # What a half draws is not what the whole drew.
        if not draws:
            # This also shows a loss or a model that compares the samples of a batch.
            first, second = (compute(half)[2] for half in split(batch, 2))
            mean = (first + second) / 2
            pairs.append((float(loss.detach()), float(mean.detach())))
            whole = gradient(loss)
            distance = float((whole - gradient(mean)).norm() / whole.norm().clamp(min=1e-12))
            text = f"those of two halves, averaged, differ from those of the batch by {distance:.2g} of their norm"
            good = "those of two halves average to those of the batch"
            yield verdict(distance < 10 * tolerance, "gradients", good, text)
    except Exception as error:  # noqa: BLE001 - the step itself took this batch
        yield Finding("note", "halves", f"a batch could not be halved ({in_one_line(error)})")
    wrong = [f"{mean:.6g}, not {whole:.6g}" for whole, mean in pairs if abs(whole - mean) > tolerance * abs(whole)]
    text = f"the mean of two halves is {''.join(wrong[:1])}; divide the loss by the number of samples"
    yield verdict(not wrong, "loss", "the mean over the samples" if pairs else "one number with a gradient", text)


def check_broadcasting(task: Task, outputs: Any, targets: Any) -> Finding:
    """Check that a loss does not broadcast outputs and targets of as many numbers against each other."""
    shapes = [tuple(part.shape) if isinstance(part, Tensor) else () for part in (outputs, targets)]
    text, pair = f"outputs {shapes[0]}, targets {shapes[1]}", [0.0, 0.0]
    if shapes[0] != shapes[1] and math.prod(shapes[0]) == math.prod(shapes[1]) > 1:
        # A loss may require these shapes.
        with suppress(Exception):
            pair = [float(task.loss(part, targets).detach()) for part in (outputs, outputs.reshape(shapes[1]))]
    otherwise = f"{text} are broadcast against each other; return the same shape from forward"
    return verdict(math.isclose(*pair, rel_tol=1e-4), "outputs", text, otherwise)


def loss_of_halves(task: Task, outputs: Any, targets: Any) -> tuple[float, float]:
    """Return the loss of outputs and targets, and the mean of those of their halves.

    Noise is added: an untrained model gives nearly the same output for every sample, which would hide a wrong divisor.
    """
    generator = torch.Generator().manual_seed(0)

    def noisy(tensor: Tensor) -> Tensor:
        tensor = tensor.cpu()
        return tensor + torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor

    def losses(pair: Any) -> tuple[float, float]:
        return float(task.loss(*pair)), sum(float(task.loss(*half)) for half in split(pair, 2)) / 2

    outputs = pytree.tree_map_only(Tensor, Tensor.detach, outputs)
    if sum(part.numel() for part in pytree.tree_leaves(outputs) if isinstance(part, Tensor)) <= MOST_OUTPUTS:
        # The loss may require values of some range, or have tensors on the device. Another device than the CPU would stop.
        with suppress(Exception):
            moved = pytree.tree_map_only(Tensor, Tensor.cpu, targets)
            found = losses((pytree.tree_map_only(Tensor, noisy, outputs), moved))
            if all(map(math.isfinite, found)):
                return found
    return losses((outputs, targets))


def check_metrics(task: Task, model: nn.Module, config: Config) -> Finding:
    """Evaluate one batch of each validation set on each rank. Every rank must call it."""
    rank, world_size, size = idist.get_rank(), idist.get_world_size(), task.evaluation_batch_size
    loaders = {}
    for name, dataset in task.val.items():
        batches = EvaluationBatches(min(len(dataset), size * world_size), size, rank, world_size)
        loaders[name] = create_loader(dataset, batches, 0, task.collate)
    try:
        metrics = evaluate(model, loaders, task, config)
    except UsageError as error:
        return Finding("fix", "metrics", str(error).rstrip("."))
    except Exception as error:
        if world_size > 1:
            # Other ranks may wait for this one.
            raise
        return Finding("note", "metrics", f"one batch is not enough to compute them ({in_one_line(error)})")
    return Finding("ok", "metrics", ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))


def first_of(names: list[str]) -> str:
    """Return the first name and how many there are; empty without one."""
    return f"{names[0]} ({len(names)} in all)" if len(names) > 1 else "".join(names)


def in_one_line(error: Exception) -> str:
    """Return the kind and the beginning of the text of an error."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
