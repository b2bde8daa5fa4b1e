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
    """What is learned, from which table, by how large a network."""

    table: str | None = None
    """CSV file with a line of column names, whose last column is learned from the others; null is scikit-learn's diabetes"""
    val_part: float = 0.2
    """part of the rows that is kept for validation"""
    width: int = 16
    """hidden units of each of two layers"""
    dropout: float = 0.1
    """part of the hidden units that is left out of a step"""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"task.width must be at least 1, not {self.width}")
        if not 0 < self.val_part < 1:
            raise ValueError(f"task.val_part must be more than 0 and less than 1, not {self.val_part}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"task.dropout must be at least 0 and less than 1, not {self.dropout}")


def requirements(config: Config) -> Iterator[Check]:
    """Yield whether the table is there."""
    table = config.task.table
    missing = table is not None and not Path(table).is_file()
    found = f"there is no file {table}" if missing else table or "diabetes, of scikit-learn"
    yield Check("data", not missing, found, "choose another task.table")
