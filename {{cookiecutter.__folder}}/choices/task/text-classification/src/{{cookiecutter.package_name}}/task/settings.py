"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """Which texts to classify, and with which network."""

    table: str | None = None
    """CSV file with the columns text and label; null is functions of Python's standard library"""
    val_part: float = 0.2
    """fraction of the texts kept for validation"""
    vocabulary: int = 8192
    """token ids: one for padding, the others for hashed words"""
    length: int = 64
    """largest number of words; the rest of a text is cut off"""
    width: int = 64
    """size of the embedding of a word"""
    layers: int = 1
    """encoder blocks"""
    heads: int = 4
    """attention heads; must divide width"""
    dropout: float = 0.1
    """dropout probability"""

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 2), ("length", 1), ("width", 1), ("layers", 1), ("heads", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"task.{name} must be at least {least}, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"task.width {self.width} is not divisible by task.heads {self.heads}")
        for name, value in (("val_part", self.val_part), ("dropout", self.dropout)):
            if not 0 <= value < 1:
                raise ValueError(f"task.{name} must be at least 0 and less than 1, not {value}")
