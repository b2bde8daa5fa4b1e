"""Every setting of a training that is not the task's, its default, unit and meaning."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from .task.settings import TaskConfig

PACKAGE = str(__package__)
# The exit code of a training that stopped on a signal after a checkpoint: the same command resumes it.
EXIT_RESUMABLE = 85
# A variable that tells the processes of a training that another one sees to that exit code: they may end with 0 then.
SUPERVISED = f"{PACKAGE.upper()}_SUPERVISED"
PERIOD = re.compile(r"(\d{1,12}(?:\.\d+)?) *(steps?|epochs?)")


@dataclass(frozen=True)
class DataConfig:
    """How the samples reach the processes."""

    batch_size: int = 64
    """samples of one step, over all processes together"""
    num_workers: int = 0
    """loader processes beside each training process; 0 loads in the training process itself"""

    def __post_init__(self) -> None:
        _require_at_least(1, data__batch_size=self.batch_size)
        if not 0 <= self.num_workers <= 256:
            raise ValueError(f"data.num_workers must be between 0 and 256, not {self.num_workers}")


@dataclass(frozen=True)
class OptimConfig:
    """How the weights are updated."""

    name: Literal["adamw", "sgd"] = "adamw"
    """sgd uses Nesterov momentum 0.9"""
    lr: float = 0.003
    """peak learning rate, before lr_scaling"""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """multiply lr by 1, by the world size, or by its square root; none, because batch_size counts all processes"""
    weight_decay: float = 0.01
    """decoupled for adamw, L2 penalty for sgd"""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """course of the learning rate after the warm-up, until the end of the training"""
    warmup: str = "1 epoch"
    """how long the learning rate grows linearly from zero: epochs or steps, such as 500 steps"""
    lr_floor: float = 0.0
    """part of the learning rate that is left at the end of a cosine or linear schedule"""
    clip_norm: float | None = None
    """scale the gradients of a step down to this norm; null leaves them"""
    accumulation_steps: int = 1
    """gradient accumulation: parts of the batch whose gradients are added up before the step, to need less memory; the step
    is the same, if the loss is a mean over the samples"""

    ema_decay: float | None = None
    """measure, and keep as the best, a moving average of the weights: 0.999 averages over about a thousand steps;
    early in a training, over a tenth of those that are done"""

    def __post_init__(self) -> None:
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"optim.ema_decay must be between 0 and 1, not {self.ema_decay}")
        if self.lr <= 0:
            raise ValueError(f"optim.lr must be positive, not {self.lr}")
        if not 0 <= self.lr_floor <= 1:
            raise ValueError(f"optim.lr_floor must be between 0 and 1, not {self.lr_floor}")
        _require_period(optim__warmup=self.warmup)
        _require_at_least(0, optim__weight_decay=self.weight_decay)
        _require_at_least(1, optim__accumulation_steps=self.accumulation_steps)
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"optim.clip_norm must be positive, not {self.clip_norm}")


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, from where, and what to keep."""

    epochs: int = 15
    """passes over the training set"""
    max_iterations: int | None = None
    """length of the training in steps, whatever epochs says"""
    evaluate_every: str = "1 epoch"
    """how often to measure, and to save a checkpoint: epochs or steps, such as 500 steps; the end is always measured"""
    save_every: str | None = None
    """how often to save a checkpoint also between evaluations: epochs or steps"""
    async_save: bool = True
    """write checkpoints while the next steps are taken, from a copy in the host's memory; fsdp2 always waits until they are written"""
    patience: int | None = None
    """early stopping: end the training after so many evaluations in a row without a better score; null trains to the end"""
    seed: int = 0
    """of the first weights, the order of the samples, dropout and augmentation"""
    run_dir: str = "runs/default"
    """folder of the log, the metrics, the curves and the checkpoints"""
    resume: str = "auto"
    """auto resumes from the newest checkpoint of run_dir, if there is one; none requires an empty run_dir, whenever it is
    started; a path is the checkpoint that the run begins from, and, started again, it resumes as with auto"""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """automatic mixed precision"""
    compile: bool = False
    """compile the model with torch.compile"""
    channels_last: bool = False
    """keep the channels of each place together in memory, with which some devices convolve faster; rounded otherwise"""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """how products of float32 are rounded on a device that has faster ones: high keeps 11 bits or more, medium 8"""
    activation_checkpointing: bool = False
    """compute the activations of the model's blocks again in the backward pass instead of keeping them: slower by about a
    third, for less memory"""

    log_every: int = 10
    """steps between two lines of the log and of steps.jsonl, and two looks at stop signals; each waits for the device"""
    profile: Literal["none", "handlers", "basic", "torch"] = "none"
    """write to run_dir/profile where the time goes: its parts, and ignite's table of handlers, or of events, or a trace of
    some steps; measuring takes time itself"""

    def __post_init__(self) -> None:
        _require_at_least(1, train__epochs=self.epochs, train__log_every=self.log_every)
        if self.max_iterations is not None:
            _require_at_least(1, train__max_iterations=self.max_iterations)
        if self.patience is not None:
            _require_at_least(1, train__patience=self.patience)
        if not self.run_dir:
            raise ValueError("train.run_dir must name a folder, such as runs/second")
        periods = {"train__evaluate_every": self.evaluate_every, "train__save_every": self.save_every or "1 epoch"}
        _require_period(**periods)
        for name, period in periods.items():
            if steps_of(period, 10**9) == 0:
                name = name.replace("__", ".")
                raise ValueError(f"{name} must be more than 0, not {period}; the end of the training always counts")


@dataclass(frozen=True)
class DistributedConfig:
    """Which processes train together; auto is what this project was made for."""

    backend: str = "auto"
    """what carries tensors between the processes"""
    device: str = "auto"
    """what each process computes on; any other is refused, and the message lists the choices"""
    nproc_per_node: int | None = None
    """processes on each node; null takes what the launcher started"""
    strategy: Literal["ddp", "local-sgd", "zero1", "fsdp2"] = "ddp"
    """ddp averages the gradients of every step; zero1 also shares out the optimizer's state, and fsdp2 weights and gradients
    too, to need less memory; local-sgd averages weights only now and then, for slow networks"""

    average_every: int = 8
    """steps between two averages of the weights by local-sgd, which also come at every log point, evaluation and save"""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """how gradients travel: in two bytes each instead of four, rounded to 11 bits, or 8; or as the nearest matrices of
    rank 2, which are far smaller"""

    bucket_mib: int = 25
    """size of the parts in which gradients are exchanged, each as soon as it is complete"""
    static_graph: bool = False
    """promise that every step uses the same parameters, which lets the exchange prepare better"""
    sync_batchnorm: bool = False
    """let BatchNorm normalize over the samples of all processes; not for a CPU"""
    timeout_s: float = 600.0
    """seconds after which a process that waits for the others gives up, where the backend has such a limit"""

    def __post_init__(self) -> None:
        if self.nproc_per_node is not None:
            _require_at_least(1, distributed__nproc_per_node=self.nproc_per_node)
        _require_at_least(1, distributed__average_every=self.average_every, distributed__bucket_mib=self.bucket_mib)
        if self.strategy in ("local-sgd", "fsdp2") and self.compression != "none":
            raise ValueError(f"{self.strategy} compresses no gradients: leave distributed.compression none")
        if self.strategy in ("local-sgd", "fsdp2") and (self.static_graph or self.bucket_mib != 25):
            raise ValueError(f"{self.strategy} has no buckets: leave distributed.bucket_mib 25 and static_graph false")
        if self.timeout_s <= 0:
            raise ValueError(f"distributed.timeout_s must be positive, not {self.timeout_s}")


class Size(NamedTuple):
    """How many processes train together."""

    nnodes: range
    """every number of nodes that there may be; more than one where nodes come and go"""
    nproc_per_node: int | None
    """None: as many as the backend finds devices"""

    @classmethod
    def fixed(cls, nnodes: int, nproc_per_node: int | None) -> Size:
        """Return the size of a training whose number of nodes does not change."""
        return cls(range(nnodes, nnodes + 1), nproc_per_node)

    def world_sizes(self) -> list[int]:
        """Return every number of processes that there may be."""
        return [nnodes * (self.nproc_per_node or 1) for nnodes in self.nnodes]


class Ranks(NamedTuple):
    """Which of the processes that train together this one is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def from_environment(cls, rank: str, world_size: str, local_rank: str, local_world_size: str) -> Ranks | None:
        """Return the numbers that these variables begin with; None if one of the first three has none."""
        names = (rank, world_size, local_rank, local_world_size)
        found = [re.match(r"\d+", os.environ.get(name, "")) for name in names]
        numbers = [int(match[0]) for match in found if match]
        if not all(found[:3]):
            return None
        return cls(numbers[0], numbers[1], numbers[2], numbers[3] if found[3] else numbers[1])


class Averaging(NamedTuple):
    """How the gradients of a step are averaged over the processes."""

    strategy: str = "ddp"
    compression: str = "none"
    """type in which they travel"""
    accumulation_steps: int = 1
    """backward passes of each step"""
    bucket_mib: int = 25
    static_graph: bool = False
    ready: Callable[[], None] | None = None
    """is called in each step when this process has all its gradients, and only waits for their exchange"""
    done: Callable[[], None] | None = None
    """is called when it has waited, where that is a part of optimizer_step"""


@dataclass(frozen=True)
class Config:
    """All settings of one run."""

    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        if self.distributed.static_graph and self.optim.accumulation_steps > 1:
            raise ValueError("a static graph has one backward pass in each step: set optim.accumulation_steps 1")
        if self.distributed.strategy == "fsdp2":
            if self.optim.ema_decay is not None:
                raise ValueError("fsdp2 keeps no average of the weights: set optim.ema_decay null")
            if self.train.amp == "fp16":
                raise ValueError("fsdp2 does not scale the loss: choose train.amp bf16 or none")
            if self.train.channels_last:
                raise ValueError("fsdp2 shares out weights in torch's own layout: set train.channels_last false")
        if self.distributed.compression == "powersgd" and self.train.amp == "fp16":
            raise ValueError(
                "powersgd adds what it leaves out to the next step, and would keep the infinite gradients by which fp16 finds "
                "its scale: choose train.amp bf16 or none, or another distributed.compression"
            )


SECTIONS = {
    "data": DataConfig,
    "task": TaskConfig,
    "optim": OptimConfig,
    "train": TrainConfig,
    "distributed": DistributedConfig,
}


def to_dict(config: Config) -> dict[str, dict[str, object]]:
    """Return the settings by section and field, as values that YAML and JSON know, and give back as they were."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {plain(name): plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
        if isinstance(value, Enum):
            return value.name
        return str(value) if isinstance(value, PurePath) else value

    settings: dict[str, dict[str, object]] = plain(asdict(config))
    return settings


def to_options(settings: Mapping[str, object]) -> list[str]:
    """Return the options of a command line for settings such as ``{"train.epochs": 2}``."""
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


def steps_of(period: str, steps_per_epoch: int) -> int:
    """Return how many steps a period such as "500 steps" or "0.5 epochs" has."""
    match = PERIOD.fullmatch(period)
    assert match, "checked when the settings were read"
    return round(float(match[1]) * (steps_per_epoch if match[2].startswith("epoch") else 1))


def _require_period(**values: str) -> None:
    for name, value in values.items():
        if not PERIOD.fullmatch(value):
            name = name.replace("__", ".")
            raise ValueError(f"{name} must be a number of steps or epochs, such as 500 steps or 1 epoch, not {value}")


def _require_at_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name.replace('__', '.')} must be at least {least}, not {value}")
