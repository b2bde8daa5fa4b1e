"""A training run, top down. Every rank executes the same lines. Yours to change."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from typing import Any, NamedTuple

from ignite.engine import Events
from ignite.utils import manual_seed

from .config import Config, steps_of
from .evaluate import evaluate
from .runtime import (
    Run,
    Task,
    attach_log,
    attach_stop,
    create_loaders,
    create_trainer,
    distribute,
    log_startup,
    prepare_model,
)
from .step import TrainStep
from .task import load_task

logger = logging.getLogger(__package__)


class Plan(NamedTuple):
    """The length of a run, in steps."""

    steps_per_epoch: int
    last_step: int
    evaluate_every: int
    save_every: int


def create_plan(config: Config, steps_per_epoch: int) -> Plan:
    """Return the settings of section ``train`` in steps."""
    settings = config.train
    last_step = settings.max_iterations or steps_per_epoch * settings.epochs
    evaluate_every = max(steps_of(settings.evaluate_every, steps_per_epoch), 1)
    save_every = max(steps_of(settings.save_every or settings.evaluate_every, steps_per_epoch), 1)
    return Plan(steps_per_epoch, last_step, evaluate_every, save_every)


def training(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Train, evaluate and save; return the exit code: 0, or 85 if a signal stopped the run after a checkpoint."""
    task = load_task(config.task)
    with Run(config, task.score, task.higher_is_better) as run:
        return train(run, task, config)


def train(run: Run, task: Task, config: Config) -> int:
    """Train in an open run directory; return the exit code."""
    loader, val_loaders = create_loaders(task, config)
    plan = create_plan(config, len(loader))

    # The same random weights on every rank.
    manual_seed(config.train.seed)
    model = prepare_model(task.create_model(), config.train.compile)
    run.initialize(model)
    step = TrainStep(distribute(model), task, config, plan.steps_per_epoch, plan.last_step)
    trainer = create_trainer(step, loader, config.train.seed)
    average = step.average.model if step.average else None
    # What a checkpoint contains.
    run.track(trainer, model, average, step=step, unchanged=sizes_of(task, config))
    run.resume()
    step.evaluated(run.evaluations.scores())
    log_startup(trainer, task, model, config, plan.steps_per_epoch, plan.last_step)

    def is_due(every: int) -> bool:
        return run.iteration % every == 0 or run.iteration == plan.last_step

    def is_over() -> bool:
        return run.iteration >= plan.last_step or run.evaluations.since_best() >= (config.train.patience or math.inf)

    def evaluate_and_record() -> None:
        with step.average.swapped(model) if step.average else nullcontext():
            metrics = {"train_loss": run.meter.loss, **evaluate(model, val_loaders, task, config)}
        epoch = math.ceil(run.iteration / plan.steps_per_epoch)
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        speed = run.meter.samples_per_second
        logger.info("epoch %s  step %s/%s  %s  %.0f samples/s", epoch, run.iteration, plan.last_step, numbers, speed)
        record = {"epoch": epoch, "iteration": run.iteration, **metrics, "lr": step.optimizer.param_groups[0]["lr"]}
        run.record({**record, "samples_per_second": round(speed, 1)})
        step.evaluated(run.evaluations.scores())

    # A run that was killed between a checkpoint and its evaluation.
    lacks_evaluation = run.iteration > 0 and is_due(plan.evaluate_every) and not run.is_evaluated()
    if is_over() and not lacks_evaluation:
        logger.info("%s is complete: raise train.epochs to train longer, or choose another train.run_dir", run.path)
        return run.finish(task)
    run.begin()
    attach_log(trainer, run, step.optimizer, plan.last_step)

    @trainer.on(Events.ITERATION_COMPLETED)
    def save_and_evaluate() -> None:
        if is_due(plan.evaluate_every):
            # Save first: an evaluation may fail, be killed or take longer than there is time.
            run.save()
            evaluate_and_record()
            if is_over():
                trainer.terminate()
        elif is_due(plan.save_every):
            run.save()

    with attach_stop(trainer, run, plan.last_step):
        if lacks_evaluation:
            evaluate_and_record()
        if not is_over():
            trainer.run(loader, max_epochs=math.ceil(plan.last_step / plan.steps_per_epoch))
    return run.exit_code if run.stopped else run.finish(task)


def sizes_of(task: Task, config: Config) -> dict[str, Any]:
    """Return what must not change when a run resumes: its steps would mean something else."""
    validation = {name: len(dataset) for name, dataset in task.val.items()}
    return {
        "data.batch_size": config.data.batch_size,
        "training samples": len(task.train),
        "validation samples": validation,
    }
