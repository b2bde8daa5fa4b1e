"""One whole training, top down; every rank runs the same lines."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Events
from ignite.handlers import LRScheduler
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from . import collectives, handlers
from .batches import EvaluationBatches, TrainingBatches, create_loader
from .checks import check_batch_size
from .config import EXIT_RESUMABLE, Config
from .distributed import backend
from .engines import LossMeter, create_trainer
from .errors import UsageError
from .evaluation import create_metrics, evaluate, one_number
from .run_directory import RunDirectory, device_name
from .task import objective
from .task.data import load
from .task.model import create_model

logger = logging.getLogger(__package__)


def training(local_rank: int, config: Config) -> int:
    """Train, evaluate after every epoch, and write the run directory.

    Returns the exit code: 0, or ``EXIT_RESUMABLE`` after a signal.

    Raises:
        UsageError: if the settings cannot work with these processes, data or checkpoints.
    """
    run = RunDirectory(config)
    world_size = idist.get_world_size()
    logger.info("processes: %s on %s, backend %s", world_size, device_name(), idist.backend() or "none")

    check_batch_size(config.data.batch_size, [world_size], config.optim.accumulation_steps)
    create_metrics()  # a score that is not among them is told of now, not after the first epoch
    data = load(config.task)
    batches = TrainingBatches(len(data.train), config.data.batch_size, idist.get_rank(), world_size, config.train.seed)
    train_loader = create_loader(data.train, batches, config.data.num_workers)
    val_batches = EvaluationBatches(len(data.val), idist.get_rank(), world_size)
    val_loader = create_loader(data.val, val_batches, config.data.num_workers)
    last_step = len(batches) * config.train.epochs
    last_step = min(last_step, config.train.max_iterations or last_step)

    torch.manual_seed(config.train.seed)
    plain_model = create_model(config.task, data)
    if config.train.compile:
        plain_model.compile()
    model = backend.wrap_model(plain_model)
    optimizer = create_optimizer(plain_model, config, world_size)
    optimizer = backend.wrap_optimizer(optimizer, plain_model, config.optim.accumulation_steps)
    scheduler = create_lr_scheduler(optimizer, round(config.optim.warmup_epochs * len(batches)), last_step)
    scaler = torch.amp.GradScaler(idist.device().type, enabled=config.train.amp == "fp16")

    trainer = create_trainer(model, optimizer, scaler, config)
    state = {"trainer": trainer, "model": plain_model, "optimizer": optimizer, "scaler": scaler}
    save_last, save_best = handlers.create_checkpoints(run, trainer, state)

    resumed_from = run.checkpoint_to_resume()
    if resumed_from:
        handlers.load_checkpoint(resumed_from, {**save_last.to_save, "checkpointer": save_last})
        handlers.forget_lost_files(run.checkpoints, save_last, save_best)
        run.take_up_records(trainer.state.iteration)
        logger.info("resumed from %s: %s of %s steps are done", resumed_from, trainer.state.iteration, last_step)
        if trainer.state.epoch_length != len(batches):
            raise UsageError(
                f"an epoch of {resumed_from} has {trainer.state.epoch_length} steps, with these settings it has "
                f"{len(batches)}: keep data.batch_size and the task's settings, or choose another train.run_dir"
            )
        # The schedule belongs to the settings, not to the checkpoint: more epochs, or another rate, change its course.
        scheduler.lr_scheduler.last_epoch = trainer.state.iteration
        if not hasattr(objective, "create_optimizer"):
            for group in optimizer.param_groups:
                group["weight_decay"] = config.optim.weight_decay
    if trainer.state.iteration >= last_step:
        logger.info("%s is complete: raise train.epochs to train longer, or choose another train.run_dir", run.path)
        # It may have been killed between its last checkpoint and its summary.
        return 0 if run.is_finished(trainer.state.iteration) else finish(run, plain_model, resumed_from, data.title)

    run.begin()
    meter = LossMeter()
    signals = handlers.StopSignals()
    started = time.perf_counter()

    @trainer.on(Events.EPOCH_STARTED)
    def begin_epoch() -> None:
        nonlocal started
        # Which samples come next follows from the number of steps done: a resumed run takes the right ones.
        batches.start_at(trainer.state.iteration)
        meter.reset()
        started = time.perf_counter()

    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, meter.update)
    signals.attach(trainer, save_last, config.train.log_every, last_step)
    if config.train.max_iterations:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=last_step), lambda: trainer.terminate())

    @trainer.on(Events.EPOCH_COMPLETED | Events.COMPLETED)
    def evaluate_and_save() -> None:
        # A run that is stopped within an epoch is not evaluated: whoever sent the signal may not wait for that.
        stopped_within = signals.stopped and trainer.state.iteration % len(batches) > 0
        if stopped_within or run.is_recorded(trainer.state.iteration):
            return
        meter.read()
        speed = meter.epoch_steps * config.data.batch_size / (time.perf_counter() - started)
        metrics = evaluate(plain_model, val_loader, config)
        run.append(
            {
                "epoch": trainer.state.epoch,
                "iteration": trainer.state.iteration,
                "train_loss": one_number("train_loss", meter.epoch_mean),
                **metrics,
                "lr": optimizer.param_groups[0]["lr"],
                "samples_per_second": round(speed, 1),
            }
        )
        logger.info(
            "epoch %d/%d  train_loss %.4g  %s  %.0f samples/s",
            trainer.state.epoch,
            config.train.epochs,
            meter.epoch_mean,
            "  ".join(f"{name} {value:.4g}" for name, value in metrics.items()),
            speed,
        )
        save_best(trainer)
        save_last(trainer)

    with handlers.progress(trainer, meter, config.train.log_every), signals.caught():
        trainer.run(train_loader, max_epochs=config.train.epochs)
    if signals.stopped:
        run.mark_stopped()
        return EXIT_RESUMABLE
    return finish(run, plain_model, resumed_from, data.title)


def finish(run: RunDirectory, model: nn.Module, resumed_from: Path | None, title: str) -> int:
    """Compare the ranks' weights, and write what a finished run leaves; return the exit code.

    Raises:
        UsageError: if the weights differ.
    """
    difference = collectives.weights_difference(model)
    summary = {"resumed_from": str(resumed_from) if resumed_from else None, "weights_difference": difference}
    run.finish(summary, title)
    if difference:
        raise UsageError(
            f"the ranks ended with weights that differ by {difference:g}: check how the model is wrapped", 1
        )
    logger.info("done: the curves and the checkpoints are in %s", run.path)
    return 0


def create_optimizer(model: nn.Module, config: Config, world_size: int) -> torch.optim.Optimizer:
    """Return the task's own optimizer, or the one of the section ``optim``.

    The learning rate of every parameter group is scaled to the number of processes as ``optim.lr_scaling`` says.
    """
    optimizer = getattr(objective, "create_optimizer", create_default_optimizer)(model, config)
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[config.optim.lr_scaling]
    for group in optimizer.param_groups:
        logger.info("lr %g x %g = %g (%s)", group["lr"], factor, group["lr"] * factor, config.optim.lr_scaling)
        group["lr"] *= factor
    return optimizer


def create_default_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer that the section ``optim`` describes, the same for all parameters."""
    settings, fused = config.optim, backend.FUSED_OPTIMIZER
    if settings.name == "adamw":
        return torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=fused)
    return torch.optim.SGD(
        model.parameters(),
        settings.lr,
        momentum=0.9,
        nesterov=True,
        weight_decay=settings.weight_decay,
        fused=fused,
    )


def create_lr_scheduler(optimizer: torch.optim.Optimizer, warmup_steps: int, steps: int) -> LRScheduler:
    """Return what multiplies the learning rate of every parameter group by the same factor in each step.

    It grows linearly to 1 over the warm-up, then decays to zero at ``steps`` as a cosine.
    """
    warmup = max(warmup_steps, 1)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        # The last step of the warm-up is the first one of the cosine.
        return (1 + math.cos(math.pi * (step - warmup + 1) / max(steps - warmup + 1, 2))) / 2

    return LRScheduler(LambdaLR(optimizer, factor))
