"""The settings of the task; read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True)
class TaskConfig:
    """How large the two networks are, and how they learn."""

    noise: int = 32
    """numbers that the generator makes an image of"""
    width: int = 128
    """hidden units of each of two layers, in both networks"""
    discriminator_lr: float = 0.001
    """learning rate of the discriminator; optim.lr is that of the generator"""
    beta2: float = 0.99
    """decay of AdamW's mean square, in both networks; that of its mean is 0"""

    def __post_init__(self) -> None:
        for name in ("noise", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, not {getattr(self, name)}")
        if self.discriminator_lr <= 0:
            raise ValueError(f"task.discriminator_lr must be positive, not {self.discriminator_lr}")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"task.beta2 must be at least 0 and less than 1, not {self.beta2}")


def validate(config: Config) -> None:
    """Raise ValueError where settings of several sections do not fit together."""
    if config.optim.name != "adamw":
        raise ValueError("optim.name must be adamw, with which both networks learn")
