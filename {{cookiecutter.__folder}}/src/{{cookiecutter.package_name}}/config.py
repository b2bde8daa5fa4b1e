"""Every setting of a run except the task's: default, unit, meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from .task.settings import TaskConfig

PERIOD = re.compile(r"(\d{1,12}(?:\.\d+)?) *(steps?|epochs?)")


@dataclass(frozen=True)
class DataConfig:
    """How samples reach the processes."""

    batch_size: int = 64
    """global batch: samples of one step over all processes"""
    num_workers: int = 0
    """DataLoader workers of each process; 0 loads in the process itself"""

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "data.batch_size must be at least 1")
        require(0 <= self.num_workers <= 256, "data.num_workers must be between 0 and 256")


@dataclass(frozen=True)
class OptimConfig:
    """How weights are updated: optim.py reads these."""

    name: Literal["adamw", "sgd"] = "adamw"
    """sgd uses Nesterov momentum 0.9"""
    lr: float = 0.003
    """peak learning rate, before lr_scaling"""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """multiply lr by 1, the world size or its square root; none, because batch_size counts all processes"""
    weight_decay: float = 0.01
    """decoupled for adamw, L2 penalty for sgd"""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """learning rate after the warm-up, until the end of the run"""
    warmup: str = "1 epoch"
    """length of the linear warm-up, in epochs or steps"""
    lr_floor: float = 0.0
    """fraction of the learning rate at the end of a cosine or linear schedule"""
    clip_norm: float | None = None
    """largest norm of the gradients of a step; null does not clip"""
    accumulation_steps: int = 1
    """micro-batches of each step, to need less memory"""
    ema_decay: float | None = None
    """evaluate and keep a moving average of the weights; 0.999 averages about a thousand steps"""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"optim.lr must be positive, not {self.lr}")
        require(self.weight_decay >= 0, "optim.weight_decay must not be negative")
        require(0 <= self.lr_floor <= 1, f"optim.lr_floor must be between 0 and 1, not {self.lr_floor}")
        require(self.clip_norm is None or self.clip_norm > 0, "optim.clip_norm must be positive")
        require(self.accumulation_steps >= 1, "optim.accumulation_steps must be at least 1")
        require(self.ema_decay is None or 0 < self.ema_decay < 1, "optim.ema_decay must be between 0 and 1")
        require_period("optim.warmup", self.warmup)


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, from where, and what to keep."""

    epochs: int = 15
    """passes over the training set"""
    max_iterations: int | None = None
    """length of the run in steps, instead of epochs"""
    evaluate_every: str = "1 epoch"
    """how often to save a checkpoint and evaluate, in epochs or steps; the end always counts"""
    save_every: str | None = None
    """how often to save a checkpoint between evaluations, in epochs or steps"""
    patience: int | None = None
    """early stopping: evaluations in a row without a better score; null trains to the end"""
    seed: int = 0
    """of initial weights, order of samples, dropout and augmentation"""
    run_dir: str = "runs/default"
    """folder of the log, the metrics, the curves and the checkpoints"""
    init_from: str | None = None
    """weights that a new run starts from: a checkpoint, a run directory, or a .pt or .safetensors file; null: random"""
    resume: str = "auto"
    """auto: from the newest checkpoint of run_dir, if any; none: run_dir must be empty; a path: that checkpoint"""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """automatic mixed precision"""
    compile: bool = False
    """compile the model with torch.compile"""
    log_every: int = 10
    """steps between two lines of the log; each waits for the device, and stop signals are handled there"""
    profile: Literal["none", "handlers", "basic", "torch"] = "none"
    """write a profile to run_dir/profile: ignite's timings of handlers or events, or a torch trace"""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "train.epochs must be at least 1")
        require(self.max_iterations is None or self.max_iterations >= 1, "train.max_iterations must be at least 1")
        require(self.patience is None or self.patience >= 1, "train.patience must be at least 1")
        require(self.log_every >= 1, "train.log_every must be at least 1")
        require(bool(self.run_dir), "train.run_dir must name a folder, such as runs/second")
        for name, period in (("evaluate_every", self.evaluate_every), ("save_every", self.save_every or "1 epoch")):
            require_period(f"train.{name}", period)
            require(float(period.split("e")[0].split("s")[0]) > 0, f"train.{name} must be more than 0, not {period}")


@dataclass(frozen=True)
class DistributedConfig:
    """Which processes train together; auto is what this project was made for."""

    backend: str = "auto"
    """how processes communicate"""
    device: str = "auto"
    """what each process computes on"""
    nproc_per_node: int | None = None
    """processes on each node; null takes those that the launcher started"""
    timeout_s: float = 600.0
    """seconds after which a process stops waiting for the others, or for a batch"""

    def __post_init__(self) -> None:
        require(
            self.nproc_per_node is None or self.nproc_per_node >= 1, "distributed.nproc_per_node must be at least 1"
        )
        require(self.timeout_s > 0, "distributed.timeout_s must be positive")


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def steps_of(period: str, steps_per_epoch: int) -> int:
    """Return the number of steps of a period such as "500 steps" or "0.5 epochs"."""
    match = PERIOD.fullmatch(period)
    assert match, "checked when the settings were read"
    return round(float(match[1]) * (steps_per_epoch if match[2].startswith("epoch") else 1))


def require_period(name: str, period: str) -> None:
    """Raise ValueError unless a setting is a number of steps or epochs."""
    require(bool(PERIOD.fullmatch(period)), f"{name} must be like 500 steps or 1 epoch, not {period}")


def require(condition: bool, message: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)
