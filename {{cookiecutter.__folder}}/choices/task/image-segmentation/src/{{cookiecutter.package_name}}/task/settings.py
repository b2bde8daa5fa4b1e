"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

# Height and width in pixels of the cell that holds a digit.
CELL = 12


@dataclass(frozen=True)
class TaskConfig:
    """Which scenes to segment, and with which network."""

    train_scenes: int = 2048
    """training scenes"""
    val_scenes: int = 512
    """validation scenes, made of other digits"""
    size: int = 24
    """height and width of a scene in pixels"""
    digits: int = 4
    """digits in each scene"""
    noise: float = 0.05
    """standard deviation of the noise; digits have a brightness from 0.4 to 1"""
    width: int = 16
    """channels at full resolution; two and four times as many at a half and a quarter of it"""

    def __post_init__(self) -> None:
        for name in ("train_scenes", "val_scenes", "size", "digits"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, not {getattr(self, name)}")
        if self.noise < 0:
            raise ValueError(f"task.noise must be at least 0, not {self.noise}")
        if self.width < 8 or self.width % 8:
            raise ValueError(f"task.width must be a multiple of 8, not {self.width}")
        if self.size % 4:
            raise ValueError(f"task.size must be divisible by 4, not {self.size}")
        if self.digits > (room := (self.size // CELL) ** 2):
            raise ValueError(f"task.size {self.size} has room for {room} digits, not {self.digits}")
