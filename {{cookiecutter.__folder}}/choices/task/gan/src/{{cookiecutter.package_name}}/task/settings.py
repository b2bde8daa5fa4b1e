"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """How large both networks are, and how they are updated."""

    noise: int = 32
    """random numbers from which the generator makes an image"""
    width: int = 128
    """units of each of two hidden layers, in both networks"""
    discriminator_lr: float = 0.001
    """learning rate of the discriminator; optim.lr is that of the generator"""
    beta2: float = 0.99
    """second beta of AdamW, for both networks; the first is 0"""

    def __post_init__(self) -> None:
        for name in ("noise", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, not {getattr(self, name)}")
        if self.discriminator_lr <= 0:
            raise ValueError(f"task.discriminator_lr must be positive, not {self.discriminator_lr}")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"task.beta2 must be at least 0 and less than 1, not {self.beta2}")
