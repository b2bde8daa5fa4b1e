"""One whole training, top down; every rank runs the same lines."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler
from torch import nn

from . import checkpoints, collectives, distributed, handlers
from .acceleration import accelerate
from .batches import EvaluationBatches, TrainingBatches, closing, create_loader
from .binding import Objective, bind, load_data
from .checks import batch_check, require
from .config import EXIT_RESUMABLE, SUPERVISED, Averaging, Config, steps_of
from .distributed import backend
from .engines import create_trainer
from .errors import UsageError
from .evaluation import create_metrics, evaluate, one_number, write_examples
from .failures import told_with_step
from .introduction import (
    begin_to_learn,
    compare_data,
    introduce,
    tell_of_compiling,
    tell_of_draws,
    tell_of_loss,
    title_of,
)
from .local_sgd import WeightAverage
from .meter import Meter
from .optimization import (
    GroupSettings,
    create_lr_scheduler,
    create_optimizer,
    lay_out_like_weights,
    require_state_of_all,
    weights_to_measure,
)
from .profiling import Stopwatch, create_stopwatch, profiled
from .randomness import seed_samples
from .run_directory import RunDirectory, may_be_best
from .task.model import create_model
from .utilization import peak_flops, step_flops

logger = logging.getLogger(__package__)


def training(local_rank: int, config: Config) -> int:
    """Train, evaluate as often as ``train.evaluate_every`` says and at the end, and write the run directory.

    Returns the exit code: 0, or ``EXIT_RESUMABLE`` after a signal, if nobody else returns it.

    Raises:
        UsageError: if the settings cannot work with these processes, data or checkpoints.
    """
    with contextlib.closing(RunDirectory(config)) as run:
        return train(run, config)


def train(run: RunDirectory, config: Config) -> int:
    """Train in a run directory that is open; return the exit code."""
    world_size = idist.get_world_size()
    logger.info("processes: %s on %s, backend %s", world_size, distributed.device_name(), idist.backend() or "none")

    require([batch_check(config.data.batch_size, [world_size], config.optim.accumulation_steps)])
    data = load_data(config)
    objective = bind(config.task, data)
    if objective.losses and config.optim.accumulation_steps > 1:
        raise UsageError("this task has several losses, whose batches are not cut: set optim.accumulation_steps to 1")
    if objective.losses and (config.distributed.compression, config.distributed.strategy) != ("none", "ddp"):
        raise UsageError(
            "the gradients of several losses are averaged as they are, after each: set distributed.compression to none and "
            "distributed.strategy to ddp"
        )
    if objective.losses and (config.distributed.static_graph or config.distributed.bucket_mib != 25):
        raise UsageError("several losses have no buckets: leave distributed.bucket_mib 25 and static_graph false")
    compare_data(data, config)
    create_metrics(objective)  # a score that is not among them is told of now, not after the first epoch
    batches = TrainingBatches(len(data.train), config.data.batch_size, idist.get_rank(), world_size, config.train.seed)
    train_loader = create_loader(data.train, batches, config.data.num_workers)
    val_batches = EvaluationBatches(len(data.val), idist.get_rank(), world_size)
    val_loader = create_loader(data.val, val_batches, config.data.num_workers)
    last_step = config.train.max_iterations or len(batches) * config.train.epochs
    evaluate_every = max(steps_of(config.train.evaluate_every, len(batches)), 1)
    save_every = max(steps_of(config.train.save_every, len(batches)), 1) if config.train.save_every else evaluate_every

    def is_due(step: int) -> bool:
        return step % evaluate_every == 0 or step == last_step

    torch.manual_seed(config.train.seed)
    seed_samples(config.train.seed)
    plain_model: nn.Module = create_model(config.task, data)
    begin_to_learn(plain_model)
    if config.distributed.sync_batchnorm:
        plain_model = backend.sync_batchnorm(plain_model)
    introduce(plain_model, data, config, len(batches), last_step)
    plain_model = accelerate(plain_model, config.train, calls_parts=bool(objective.losses))

    stopwatch = create_stopwatch(config)
    model, optimizer = prepare(plain_model, config, world_size, objective, stopwatch)
    scheduler = create_lr_scheduler(optimizer, config.optim, len(batches), last_step)
    scaler = torch.amp.GradScaler(idist.device().type, enabled=config.train.amp == "fp16")
    trainer = create_trainer(model, optimizer, scaler, config, objective, stopwatch)
    meter = Meter(config.data.batch_size)
    state = {"trainer": trainer, "model": plain_model, "optimizer": optimizer, "scaler": scaler, "meter": meter}
    # What the numbers of steps in it are counted in: other data are refused.
    state |= {"batches": batches, "val_batches": val_batches}
    state["groups"] = group_settings = GroupSettings(optimizer)
    state["score"] = checkpoints.Score()
    measured = plain_model
    if config.optim.ema_decay is not None:
        measured = state["average"] = average_weights(plain_model, config.optim.ema_decay, trainer)
    # What has to be equal on all ranks; a list counts each module once.
    kept = nn.ModuleList([plain_model, measured])
    save_last, save_best = checkpoints.create_checkpoints(run, trainer, state, measured)

    def follow_evaluation() -> None:
        meter.reset()
        if may_be_best(run.records[-1]):
            with weights_to_measure(optimizer):
                save_best(trainer)

    def take_up_evaluation() -> None:
        checkpoints.take_up_best(run, save_best)
        follow_evaluation()

    resumed_from = checkpoints.checkpoint_to_resume(run)
    if resumed_from:
        objects = {**save_last.to_save, "checkpointer": save_last}
        if resumed_from == Path(config.train.resume):
            # No evaluation of this run has been compared by it.
            del objects["score"]
        checkpoints.load_checkpoint(resumed_from, objects)
        checkpoints.take_stock(run.checkpoints, save_last, save_best)
        logger.info("resumed from %s: %s of %s steps are done", resumed_from, trainer.state.iteration, last_step)
        # The schedule and the optimizer's settings are those of now: more epochs, or another rate, change their course.
        scheduler.lr_scheduler.last_epoch = trainer.state.iteration
        group_settings.apply_changes()
        lay_out_like_weights(optimizer)
        if resumed_from == Path(config.train.resume) and is_due(trainer.state.iteration):
            # It has been evaluated where it comes from.
            meter.reset()
    run.take_up_records(trainer.state.iteration)
    # A checkpoint is older than the evaluation of its step, and does not know of it.
    is_measured = run.share_record(trainer.state.iteration)
    lacks_evaluation = is_due(trainer.state.iteration) and meter.steps > 0 and not is_measured
    evaluations = trainer.state.iteration // evaluate_every
    as_often = all(change.name != "train.evaluate_every" for change in run.changes)
    if run.writes and len(run.records) + lacks_evaluation < evaluations and as_often:
        logger.warning("metrics.jsonl has %s of the %s evaluations until now", len(run.records), evaluations)
    at_end = trainer.state.iteration >= last_step
    if not lacks_evaluation and (at_end or run.is_out_of_patience()):
        limit = "epochs" if config.train.max_iterations is None else "max_iterations"
        limit = f"train.{limit if at_end else 'patience'}"
        run.refuse_changes(limit)
        if resumed_from == Path(config.train.resume):
            raise UsageError(f"the training of {resumed_from} has reached its end: raise {limit} to train it further")
        logger.info("%s is complete: raise %s to train longer, or choose another train.run_dir", run.path, limit)
        if run.is_finished(trainer.state.iteration):
            return 0
        # It was killed between its last evaluation and its summary.
        if is_measured:
            take_up_evaluation()
            collectives.rank_zero_only(run.background.wait)
        return finish(run, kept, resumed_from, title_of(data))

    # From here on, the run is changed: whatever was refused has left it as it was.
    if resumed_from and resumed_from == Path(config.train.resume):
        checkpoints.put_later_ones_aside(run, trainer.state.iteration)
    run.begin(trainer.state.iteration)
    if is_measured:
        take_up_evaluation()
    signals = handlers.StopSignals(run.path)
    weight_average: WeightAverage | None = None
    if config.distributed.strategy == "local-sgd":
        weight_average = WeightAverage(plain_model, measured, optimizer, trainer, scaler)
        # At log points too, where a signal may stop the training, so that a resumed one averages no more often than others.
        weight_average.attach(config.distributed.average_every, config.train.log_every)

    def agree() -> None:
        # The memory holds no copies but those of the last save.
        run.background.wait()
        # What belongs to all ranks, before one of them writes it or each measures its part.
        if weight_average:
            weight_average.average()
        meter.read()
        handlers.require_finite(meter.loss, trainer, run, plain_model, scaler)
        collectives.broadcast_buffers(plain_model)

    def save(engine: Engine) -> None:
        stopwatch.begin("checkpoint")
        agree()
        save_last(engine)
        meter.restart_clock()
        stopwatch.begin("loop")

    def save_for_good(engine: Engine) -> None:
        save(engine)
        # The others would leave otherwise, and a launcher then ends the one that writes.
        collectives.rank_zero_only(run.background.wait)

    def save_and_evaluate() -> None:
        stopwatch.begin("checkpoint")
        agree()
        collectives.require_equal_weights(plain_model, trainer.state.iteration)
        require_state_of_all(optimizer, trainer.state.iteration)
        # First, as an evaluation may fail, be killed, or take longer than there is time.
        save_last(trainer)
        stopwatch.begin("evaluation")
        speed = meter.samples_per_second
        with weights_to_measure(optimizer):
            metrics = evaluate(measured, val_loader, config, objective)
            write_examples(measured, run.path / "examples", trainer.state.iteration, objective)
        run.append(
            {
                # Before the first step of this process, ignite has not counted it.
                "epoch": math.ceil(trainer.state.iteration / len(batches)),
                "iteration": trainer.state.iteration,
                "train_loss": one_number("train_loss", meter.loss),
                **metrics,
                "lr": optimizer.param_groups[0]["lr"],
                "samples_per_second": round(speed, 1),
            }
        )
        logger.info(
            "epoch %.4g/%.4g  step %d/%d  train_loss %.4g  %s  %.0f samples/s",
            trainer.state.iteration / len(batches),
            last_step / len(batches),
            trainer.state.iteration,
            last_step,
            meter.loss,
            "  ".join(f"{name} {value:.4g}" for name, value in metrics.items()),
            speed,
        )
        stopwatch.begin("checkpoint")
        follow_evaluation()
        meter.restart_clock()
        stopwatch.begin("loop")

    def has_ended() -> bool:
        if trainer.state.iteration < last_step and run.is_out_of_patience():
            logger.info("ends early: no better score in the last %s evaluations", config.train.patience)
            return True
        return trainer.state.iteration >= last_step

    # Which samples come next follows from the number of steps done: a resumed run takes the right ones.
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: batches.start_at(trainer.state.iteration))
    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    first_step = Events.ITERATION_COMPLETED(once=trainer.state.iteration + 1)
    if config.train.compile:
        logger.info("the first step compiles the model, which may take minutes")
        trainer.add_event_handler(first_step, tell_of_compiling, time.perf_counter())
    trainer.add_event_handler(first_step, tell_of_draws, config)
    trainer.add_event_handler(first_step, tell_of_loss, plain_model, config, objective)
    meter.attach(trainer)
    step_log = handlers.StepLog(trainer, meter, optimizer, run)
    step_log.attach(config.train.log_every, last_step)

    @trainer.on(Events.ITERATION_COMPLETED)
    def after_step() -> None:
        step = trainer.state.iteration
        if is_due(step):
            save_and_evaluate()
            if has_ended():
                trainer.terminate()
        elif step % save_every == 0:
            save(trainer)

    signals.attach(trainer, save_for_good, config.train.log_every, last_step)
    flops = partial(step_flops, plain_model, config, objective), partial(peak_flops, config)
    profile = profiled(trainer, stopwatch, model, config, run.path / "profile", *flops)
    # A launcher that ends what is left after a failure does not keep a checkpoint from being written to its end.
    with (
        step_log.shown(),
        signals.caught(),
        run.background.emptied(),
        closing(train_loader, val_loader),
        told_with_step(trainer, meter),
        profile,
    ):
        if lacks_evaluation:
            meter.restart_clock()
            save_and_evaluate()
        if not (lacks_evaluation and has_ended()):
            trainer.run(train_loader, max_epochs=math.ceil(last_step / len(batches)))
    if signals.stopped:
        run.mark_stopped()
        # On other nodes, this node's supervision may not see the mark in time.
        return 0 if os.environ.get(SUPERVISED) and idist.get_nnodes() == 1 else EXIT_RESUMABLE
    return finish(run, kept, resumed_from, title_of(data))


def average_weights(model: nn.Module, decay: float, trainer: Engine) -> nn.Module:
    """Return a model whose weights follow those of ``model``: a moving average over the steps.

    At first it averages over fewer steps, a tenth of those until then: the weights of the beginning would have a part in
    it for long, and the statistics of BatchNorm, which are those of ``model`` now, would not fit it. Weights without a gradient
    are those of ``model`` now, as buffers are.

    Raises:
        UsageError: if the weights are rounded so much that their average would stand still.
    """
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    if narrow := {weight.dtype for weight in learning if weight.is_floating_point() and weight.itemsize < 4}:
        raise UsageError(
            f"an average of weights in {narrow.pop()} would round its small steps away: set optim.ema_decay null, or keep the weights "
            "in float32 and set train.amp bf16",
            1,
        )
    average = EMAHandler(model, 1 - decay)
    # Ignite leaves it in evaluation mode, which may change the weights themselves.
    average.ema_model.train()
    average.attach(trainer)
    pairs = [*zip(model.parameters(), average.ema_model.parameters(), strict=True)]
    state: Any = trainer.state

    @trainer.on(Events.ITERATION_STARTED)
    def follow_closely_at_first() -> None:
        state.ema_momentum = max(1 - decay, 9 / (10 + state.iteration))

    @trainer.on(Events.ITERATION_COMPLETED)
    def keep_what_is_frozen() -> None:
        # An average of equal numbers is rounded.
        for weight, averaged in pairs:
            if not weight.requires_grad:
                averaged.copy_(weight)

    return average.ema_model


def prepare(
    model: nn.Module, config: Config, world_size: int, objective: Objective, stopwatch: Stopwatch
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model on its device and its optimizer, which average the gradients unless the step does so itself."""
    settings = config.distributed
    if objective.losses or settings.strategy == "local-sgd":
        model = model.to(idist.device())
        collectives.broadcast([*model.parameters(), *model.buffers()])
        return model, create_optimizer(model, config, world_size)
    begin = stopwatch.begin if config.train.profile != "none" else None
    averaging = Averaging(
        settings.strategy,
        settings.compression,
        config.optim.accumulation_steps,
        settings.bucket_mib,
        settings.static_graph,
        ready=partial(begin, "exchange") if begin else None,
        done=partial(begin, "optimizer") if begin else None,
    )
    wrapped = backend.wrap_model(model, averaging)
    return wrapped, backend.wrap_optimizer(create_optimizer(model, config, world_size), model, averaging)


def finish(run: RunDirectory, model: nn.Module, resumed_from: Path | None, title: str) -> int:
    """Write what a finished run leaves, with the difference between the ranks' weights; return the exit code."""
    difference = collectives.weights_difference(model)
    summary = {"resumed_from": str(resumed_from) if resumed_from else None, "weights_difference": difference}
    run.finish(summary, title)
    return 0
