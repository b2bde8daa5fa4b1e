"""Strategies: what each rank holds, and when ranks communicate. The setting ``distributed.strategy``; docs/strategies.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...config import DistributedConfig, require
from ...runtime import UsageError

SUPPORTED: dict[str, tuple[str, ...]] = {
    "gloo": ("ddp", "zero1", "fsdp2", "local-sgd"),
    "nccl": ("ddp", "zero1", "fsdp2", "local-sgd"),
    "mpi": ("ddp", "zero1", "local-sgd"),
    "horovod": ("ddp", "local-sgd"),
    "xla-tpu": ("ddp",),
}


@dataclass(frozen=True)
class StrategiesConfig(DistributedConfig):
    """Which processes train together, and what each of them holds."""

    strategy: Literal["ddp", "zero1", "fsdp2", "local-sgd"] = "ddp"
    """ddp: each process holds everything; zero1 shards the optimizer's state, and fsdp2 also weights and gradients;
    with local-sgd, processes train independently and average their weights every average_every steps"""
    average_every: int = 8
    """steps between two averages with local-sgd"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.average_every >= 1, "distributed.average_every must be at least 1")


SECTIONS = {"distributed": StrategiesConfig}


def configure(config: Any) -> None:
    """Register the strategy of a run.

    Raises:
        UsageError: if the backend, or another setting, does not work with it.
    """
    # Importing torch takes time.
    import ignite.distributed as idist

    from ...runtime.process import collectives
    from ...runtime.state import checkpoints, run

    strategy, backend = config.distributed.strategy, config.distributed.backend
    if strategy not in SUPPORTED[backend]:
        choices = " or ".join(SUPPORTED[backend])
        raise UsageError(f"distributed.strategy {strategy} does not work with the backend {backend}. Use {choices}.")
    if strategy == "fsdp2" and config.train.amp == "fp16":
        raise UsageError(
            "distributed.strategy fsdp2 does not work with train.amp fp16. Use bf16, or the strategy zero1."
        )
    if strategy == "fsdp2" and config.optim.ema_decay is not None:
        fix = "Set it to null, or use the strategy zero1."
        raise UsageError(
            f"distributed.strategy fsdp2 does not work with optim.ema_decay {config.optim.ema_decay}. {fix}"
        )
    if "fsdp2" in SUPPORTED[backend]:
        from . import fsdp2

        # Every strategy reads the checkpoints of fsdp2.
        checkpoints.current = fsdp2.Folders() if strategy == "fsdp2" and idist.get_world_size() > 1 else fsdp2.Files()
    if idist.get_world_size() == 1:
        return
    if strategy == "fsdp2":
        fsdp2.prepare()
    elif strategy == "zero1":
        from . import zero1

        run.extensions.append(zero1.shard_optimizers)
    elif strategy == "local-sgd":
        from . import local_sgd

        collectives.wrap = local_sgd.separate
        run.extensions.append(local_sgd.attach)
