"""One whole training, top down; every rank runs the same lines."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import CosineAnnealingScheduler, ParamScheduler, create_lr_scheduler_with_warmup
from torch import nn

from . import collectives, handlers
from .checks import check_batch_size
from .config import EXIT_RESUMABLE, Config, OptimConfig, UsageError
from .data import EvaluationBatches, TrainingBatches, create_datasets, create_loader
from .distributed import backend
from .engines import LossMeter, create_evaluator, create_trainer
from .model import create_model

logger = logging.getLogger(__package__)


def training(local_rank: int, config: Config) -> int:
    """Train, evaluate after every epoch, and write the run directory.

    Returns the exit code: 0, or ``EXIT_RESUMABLE`` after a signal.

    Raises:
        UsageError: if the settings cannot work with these processes, data or checkpoints.
    """
    run = handlers.RunDirectory(config)
    world_size = idist.get_world_size()
    logger.info("processes: %s on %s, backend %s", world_size, handlers.device_name(), idist.backend() or "none")

    check_batch_size(config.data.batch_size, [world_size], config.optim.accumulation_steps)
    train_set, val_set = create_datasets(config.data)
    batches = TrainingBatches(len(train_set), config.data.batch_size, idist.get_rank(), world_size, config.train.seed)
    train_loader = create_loader(train_set, batches, config.data.num_workers)
    val_batches = EvaluationBatches(len(val_set), idist.get_rank(), world_size)
    val_loader = create_loader(val_set, val_batches, config.data.num_workers)
    last_step = len(batches) * config.train.epochs
    last_step = min(last_step, config.train.max_iterations or last_step)

    torch.manual_seed(config.train.seed)
    plain_model = create_model(config.model, train_set.shape, train_set.num_classes)
    if config.train.compile:
        plain_model.compile()
    model = backend.wrap_model(plain_model)
    optimizer = create_optimizer(plain_model, config.optim, world_size)
    optimizer = backend.wrap_optimizer(optimizer, plain_model, config.optim.accumulation_steps)
    scheduler = create_lr_scheduler(optimizer, round(config.optim.warmup_epochs * len(batches)), last_step)
    scaler = torch.amp.GradScaler(idist.device().type, enabled=config.train.amp == "fp16")

    trainer = create_trainer(model, optimizer, scaler, config)
    evaluator = create_evaluator(plain_model, config)
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
                f"{len(batches)}: keep data.dataset and data.batch_size, or choose another train.run_dir"
            )
        # The schedule belongs to the settings, not to the checkpoint: more epochs, or another rate, change its course.
        for _ in range(trainer.state.iteration):
            scheduler(trainer)
        for group in optimizer.param_groups:
            group["weight_decay"] = config.optim.weight_decay
    if trainer.state.iteration >= last_step:
        logger.info("%s is complete: raise train.epochs to go on, or choose another train.run_dir", run.path)
        # It may have been killed between its last checkpoint and its summary.
        return 0 if run.is_finished(trainer.state.iteration) else finish(run, plain_model, resumed_from)

    run.begin()
    meter = LossMeter()
    signals = handlers.StopSignals()
    started = time.perf_counter()

    @trainer.on(Events.EPOCH_STARTED)
    def begin_epoch() -> None:
        nonlocal started
        # Which samples come next follows from the number of steps done: a resumed run goes on with the right ones.
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
        metrics = evaluate(evaluator, val_loader)
        run.append(
            {
                "epoch": trainer.state.epoch,
                "iteration": trainer.state.iteration,
                "train_loss": round(meter.epoch_mean, 6),
                **metrics,
                "lr": optimizer.param_groups[0]["lr"],
                "samples_per_second": round(speed, 1),
            }
        )
        logger.info(
            "epoch %d/%d  train %.4f  val %.4f  accuracy %.4f  %.0f samples/s",
            trainer.state.epoch,
            config.train.epochs,
            meter.epoch_mean,
            metrics["val_loss"],
            metrics["val_accuracy"],
            speed,
        )
        save_best(trainer)
        save_last(trainer)

    with handlers.progress(trainer, meter, config.train.log_every), signals.caught():
        trainer.run(train_loader, max_epochs=config.train.epochs)
    if signals.stopped:
        run.mark_stopped()
        return EXIT_RESUMABLE
    return finish(run, plain_model, resumed_from)


def finish(run: handlers.RunDirectory, model: nn.Module, resumed_from: Path | None) -> int:
    """Compare the ranks' weights, and write what a finished run leaves; return the exit code.

    Raises:
        UsageError: if the weights differ.
    """
    difference = collectives.weights_difference(model)
    run.finish({"resumed_from": str(resumed_from) if resumed_from else None, "weights_difference": difference})
    if difference:
        raise UsageError(
            f"the ranks ended with weights that differ by {difference:g}: check how the model is wrapped", 1
        )
    logger.info("done: the curves and the checkpoints are in %s", run.path)
    return 0


def evaluation(local_rank: int, config: Config, checkpoint: str) -> int:
    """Print the metrics of ``checkpoint`` on the validation set as one line of JSON, from rank 0.

    They are the numbers that the training reported, whatever the number of processes here and there.
    """
    _, val_set = create_datasets(config.data)
    batches = EvaluationBatches(len(val_set), idist.get_rank(), idist.get_world_size())
    model = create_model(config.model, val_set.shape, val_set.num_classes).to(idist.device())
    handlers.load_checkpoint(Path(checkpoint), {"model": model})
    metrics = evaluate(create_evaluator(model, config), create_loader(val_set, batches, config.data.num_workers))
    if idist.get_rank() == 0:
        print(json.dumps({"checkpoint": checkpoint, **metrics}))
    return 0


def evaluate(evaluator: Engine, loader: Any) -> dict[str, float]:
    """Return ``val_loss`` (nats) and ``val_accuracy`` over all ranks' batches of ``loader``."""
    metrics = evaluator.run(loader).metrics
    return {"val_loss": round(float(metrics["loss"]), 6), "val_accuracy": round(float(metrics["accuracy"]), 6)}


def create_optimizer(model: nn.Module, config: OptimConfig, world_size: int) -> torch.optim.Optimizer:
    """Return the optimizer, its learning rate scaled to the number of processes as ``optim.lr_scaling`` says."""
    factor = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[config.lr_scaling]
    lr = config.lr * factor
    logger.info("lr %g x %g = %g (%s)", config.lr, factor, lr, config.lr_scaling)
    fused = backend.FUSED_OPTIMIZER
    if config.name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, weight_decay=config.weight_decay, fused=fused)
    return torch.optim.SGD(
        model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=config.weight_decay, fused=fused
    )


def create_lr_scheduler(optimizer: torch.optim.Optimizer, warmup_steps: int, steps: int) -> ParamScheduler:
    """Return a linear warm-up to the optimizer's learning rate, then a cosine decay to zero at ``steps``."""
    lr = optimizer.param_groups[0]["lr"]
    if warmup_steps < 2:
        return CosineAnnealingScheduler(optimizer, "lr", lr, 0.0, cycle_size=max(steps, 2))
    # The last step of the warm-up is the first one of the cosine.
    cosine = CosineAnnealingScheduler(optimizer, "lr", lr, 0.0, cycle_size=max(steps - warmup_steps + 1, 2))
    return create_lr_scheduler_with_warmup(cosine, warmup_start_value=lr / warmup_steps, warmup_duration=warmup_steps)
