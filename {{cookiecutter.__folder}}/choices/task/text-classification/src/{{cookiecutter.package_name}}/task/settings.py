"""The settings of the task; read before torch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks import Check

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True)
class TaskConfig:
    """What is learned, from which texts, by how large a network."""

    table: str | None = None
    """CSV file with the columns text and label; null is functions of Python's standard library"""
    val_part: float = 0.2
    """part of the texts that is kept for validation"""
    vocabulary: int = 8192
    """numbers that words are hashed into, and one for padding"""
    length: int = 64
    """words that are read of each text, from its beginning"""
    width: int = 64
    """numbers that stand for each word between the layers"""
    layers: int = 1
    """blocks of attention and a feed-forward network"""
    heads: int = 4
    """of the attention; they share the width"""
    dropout: float = 0.1
    """part of the numbers that is left out of a step"""

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 2), ("length", 1), ("width", 1), ("layers", 1), ("heads", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"task.{name} must be at least {least}, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"task.width {self.width} is not divisible by task.heads {self.heads}")
        for name, value in (("val_part", self.val_part), ("dropout", self.dropout)):
            if not 0 <= value < 1:
                raise ValueError(f"task.{name} must be at least 0 and less than 1, not {value}")


def requirements(config: Config) -> Iterator[Check]:
    """Yield whether the table is there."""
    table = config.task.table
    missing = table is not None and not Path(table).is_file()
    found = f"there is no file {table}" if missing else table or "functions of Python's standard library"
    yield Check("data", not missing, found, "choose another task.table")
