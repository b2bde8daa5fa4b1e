"""What a person wants to know when a training starts."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.utils import convert_tensor
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

from . import collectives
from .acceleration import keeping_buffers
from .batches import Reader, Share
from .binding import Objective
from .config import Config
from .distributed import backend, hardware
from .engines import change_tensors, cut
from .errors import UsageError
from .evaluation import answer, evaluating, refuse_metrics_of_many_numbers
from .randomness import has_drawn, seed_step

logger = logging.getLogger(__package__)

# Noise is added to no more outputs than this, which takes a second; more, such as scores of many words, stay as they are.
MOST_OUTPUTS = 10**7


def begin_to_learn(model: nn.Module) -> None:
    """Put every module into training mode, as a loop written by hand does; log it if some were in evaluation mode.

    Raises:
        UsageError: if a parameter has no shape yet, so that neither processes nor checkpoints could share it.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"{name} has no shape until the model has run, as in nn.LazyLinear: run it on one sample in create_model of "
                "task/model.py",
                1,
            )
    resting = sum(not module.training for module in model.modules())
    model.train()
    if resting := resting - sum(not module.training for module in model.modules()):
        logger.info(
            "%s modules of the model came in evaluation mode, as a pretrained model does, and are put into training mode: let "
            "train() of a module say otherwise, if its statistics are to stay as they are",
            resting,
        )


def introduce(model: nn.Module, data: Any, config: Config, steps_per_epoch: int, steps: int) -> None:
    """Log the data, the model, the length of the training, and layers that depend on the number of processes."""
    world_size, batch_size = idist.get_world_size(), config.data.batch_size
    share = batch_size // world_size // config.optim.accumulation_steps
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info("data: %s, %s training and %s validation samples", title_of(data), len(data.train), len(data.val))
    logger.info("model: %s with %s parameters to learn", type(model).__name__, f"{parameters:,}")
    logger.info(
        "training: %s steps of %s samples, %s on each process; an epoch has %s steps, and leaves out %s samples, different "
        "ones each time; writes to %s",
        steps,
        batch_size,
        batch_size // world_size,
        steps_per_epoch,
        len(data.train) % batch_size,
        config.train.run_dir,
    )
    kinds = Counter(type(module).__name__ for module in model.modules() if isinstance(module, _BatchNorm))
    if kinds.pop(nn.SyncBatchNorm.__name__, 0):
        logger.info("SyncBatchNorm normalizes over all processes: their number changes nothing")
    settings = config.distributed
    if world_size > 1 and settings.compression == "powersgd":
        logger.info(
            "gradients are exchanged as matrices of low rank: results change with the number of processes, and in a "
            "training that resumes, as what was left out so far is not saved"
        )
    elif world_size > 1 and settings.compression != "none":
        logger.info(
            "gradients are rounded to %s to be exchanged: results change with the number of processes",
            settings.compression,
        )
    if world_size > 1 and settings.strategy == "local-sgd":
        logger.info(
            "weights are averaged every %s steps, and at each log point, evaluation and save: results change with the "
            "number of processes",
            settings.average_every,
        )
    for kind in kinds:
        logger.info(
            "%s normalizes over %s samples at a time: results change with the number of processes, and of "
            "optim.accumulation_steps",
            kind,
            share,
        )


def compare_data(data: Any, config: Config) -> None:
    """Find out whether every rank has loaded the same data; every rank must call it.

    Raises:
        UsageError: if their numbers of samples differ.
    """
    if idist.get_world_size() == 1:
        return
    sizes = (len(data.train), len(data.val))
    # What this process opens to read a sample could perhaps not be sent to its loader processes.
    samples = [] if config.data.num_workers else fingerprint(data, config.train.seed)
    everyones = backend.all_gather_object((sizes, samples))
    for rank, (others, others_samples) in enumerate(everyones):
        fix = "let load of task/data.py return the same on every rank, and seed what it draws"
        if others != everyones[0][0]:
            counts = "{} training and {} validation samples".format
            raise UsageError(f"rank {rank} has {counts(*others)}, rank 0 {counts(*everyones[0][0])}: {fix}", 1)
        if others_samples != everyones[0][1]:
            logger.warning("rank %s has other samples than rank 0, or they change from time to time: %s", rank, fix)
            return


def fingerprint(data: Any, seed: int) -> list[float]:
    """Return a few numbers that tell one pair of data sets from another: of the first and last sample of each."""
    found: list[float] = []
    # A sample that cannot be read is told of when the training comes to it.
    with suppress(Exception):
        for dataset in (data.train, data.val):
            for index in (0, len(dataset) - 1):
                batch = Reader(dataset, seed).__getitems__(Share(0, [index]))
                for part in pytree.tree_leaves(batch):
                    if isinstance(part, Tensor):
                        found.append(float(part.double().nan_to_num().sum()))
                    elif isinstance(part, str):
                        found.append(float(zlib.crc32(part.encode())))
    return found


def title_of(data: Any) -> str:
    """Return what the task calls its data, or the kind of its dataset."""
    return str(getattr(data, "title", type(data.train).__name__))


def tell_of_compiling(since: float) -> None:
    """Log how long the first step took, since a time of ``time.perf_counter``, and if it has compiled nothing."""
    # Only now, as its import takes seconds.
    from torch._dynamo.utils import counters

    logger.info("the first step, which compiles the model, took %.1f s", time.perf_counter() - since)
    if not counters["stats"]["unique_graphs"]:
        logger.warning("torch.compile has compiled nothing of this model: leave train.compile false")


def tell_of_draws(trainer: Engine, config: Config) -> None:
    """Log, after a step, if something in it has drawn random numbers, such as dropout."""
    if not hardware.SHOWS_DRAWS:
        logger.info("this device does not tell whether a step draws random numbers, which differ between ranks")
    elif has_drawn(idist.device(), config.train.seed, idist.get_rank(), trainer.state.iteration):
        logger.info(
            "a step draws random numbers, different ones on each rank: results change with the number of processes"
        )


def tell_of_shapes(outputs: Any, targets: Any) -> None:
    """Log if outputs and targets hold as many numbers in other shapes, which losses and metrics stretch to fit, silently."""
    shapes = [tuple(part.shape) if isinstance(part, Tensor) else () for part in (outputs, targets)]
    if shapes[0] != shapes[1] and math.prod(shapes[0]) == math.prod(shapes[1]) > 1:
        logger.warning(
            "outputs have the shape %s and targets %s: broadcasting may pair them wrongly; let forward return both in "
            "one shape",
            *shapes,
        )


def tell_of_loss(trainer: Engine, model: nn.Module, config: Config, objective: Objective) -> None:
    """Log, after a step, if the loss of a batch is not the mean of the losses of its halves.

    What is averaged over processes is not that of the whole batch then, as where samples have weights, or targets are left out.
    """
    # What is compiled would be compiled once more.
    eager = torch.compiler.set_stance("force_eager") if config.train.compile else nullcontext()
    batch: Any = trainer.state.batch
    answers = partial(answer, config=config, objective=objective)
    found: list[tuple[float, float]] = []
    failure, draws = "", False
    with torch.no_grad(), evaluating(model), keeping_buffers(model), eager:
        try:
            batch = convert_tensor(batch, idist.device())
            if (parts := config.optim.accumulation_steps) > 1:
                # What a step has the memory for.
                batch = cut(batch, 0, parts, config.data.batch_size // idist.get_world_size())
            seed_step(config.train.seed, 0, 0)
            outputs, targets = answers(model, batch)
            draws = hardware.SHOWS_DRAWS and has_drawn(idist.device(), config.train.seed, 0, 0)
            tell_of_shapes(outputs, targets)
            refuse_metrics_of_many_numbers(outputs, targets, objective)
            if objective.losses:
                return
        except UsageError:
            raise
        except Exception as error:  # the training itself has taken it
            if collectives.is_shared_out(model):
                # The others wait for this rank, in an exchange to which it does not come.
                raise
            outputs = targets = None
            failure = " ".join(f"{type(error).__name__}: {error}".split())
        looks: list[Callable[..., tuple[float, float]]] = [partial(loss_of_halves, (outputs, targets))]
        # Where each pass is an exchange, a rank whose batch cannot be cut would leave the others waiting. And what a model draws
        # for a half is not what it drew for the whole.
        if not collectives.is_shared_out(model) and not draws:
            looks.insert(0, partial(loss_of_half_batches, partial(answers, model), batch))
        for look in looks:
            try:
                found.append(look(objective=objective))
            except Exception as error:  # noqa: BLE001 - such a batch cannot be cut, and the training itself has taken it
                failure = failure or " ".join(f"{type(error).__name__}: {error}".split())
    for whole, mean in found:
        # Mixed precision has other rounding errors for half a batch.
        if abs(whole - mean) > (1e-4 if config.train.amp == "none" else 1e-2) * abs(whole):
            logger.info(
                "the loss of a batch is %.6g, the mean of those of its halves %.6g: results change with the number of "
                "processes, and of optim.accumulation_steps",
                whole,
                mean,
            )
            return
    if not found:
        logger.info(
            "a batch cannot be halved (%.200s): if its loss is no mean over the samples, results change with the number of "
            "processes",
            failure,
        )


def loss_of_half_batches(answers: Callable[[Any], Any], batch: Any, objective: Objective) -> tuple[float, float]:
    """Return the loss of a batch, and the mean of those of its halves, as if each were on a process of its own.

    That also shows a loss that compares the samples of a batch with each other, such as a contrastive one.
    """
    samples = next(len(part) for part in pytree.tree_leaves(batch) if isinstance(part, Tensor))
    sizes = [(samples + 1) // 2, samples // 2]
    losses = [float(objective.loss(*answers(cut(batch, part, 2, samples)))) for part in range(2)]
    mean = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / samples
    return float(objective.loss(*answers(batch))), mean


def loss_of_halves(answered: Any, objective: Objective) -> tuple[float, float]:
    """Return the loss of outputs and targets, and the mean of those of their halves, where both are as different as can be.

    At the start, a model answers all samples alike, and whatever a loss divides by, nobody would see it.
    """
    even: Any = change_tensors(answered, lambda tensor: tensor[: len(tensor) // 2 * 2])
    outputs, targets = even

    def losses(outputs: Any, targets: Any) -> tuple[float, float]:
        halves = [float(objective.loss(cut(outputs, part, 2), cut(targets, part, 2))) for part in range(2)]
        return float(objective.loss(outputs, targets)), sum(halves) / 2

    if sum(part.numel() for part in pytree.tree_leaves(outputs) if isinstance(part, Tensor)) > MOST_OUTPUTS:
        return losses(outputs, targets)
    generator = torch.Generator().manual_seed(0)

    def noisy(tensor: Tensor) -> Tensor:
        tensor = tensor.cpu()
        return tensor + torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor

    try:
        # On the CPU: another device that is given what it does not expect may answer nothing any more.
        found = losses(change_tensors(outputs, noisy), change_tensors(targets, Tensor.cpu))
    except Exception:  # noqa: BLE001 - a loss may require numbers of some range, or have some of its own on the device
        found = (math.nan, math.nan)
    return found if all(map(math.isfinite, found)) else losses(outputs, targets)
