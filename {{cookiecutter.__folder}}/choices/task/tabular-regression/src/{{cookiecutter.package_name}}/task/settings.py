"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """Which table to learn, and with which network."""

    table: str | None = None
    """CSV file with a line of column names and the target in the last column; null is scikit-learn's diabetes"""
    val_part: float = 0.2
    """fraction of the rows kept for validation"""
    width: int = 16
    """units of each of two hidden layers"""
    dropout: float = 0.1
    """dropout probability of hidden units"""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"task.width must be at least 1, not {self.width}")
        if not 0 < self.val_part < 1:
            raise ValueError(f"task.val_part must be more than 0 and less than 1, not {self.val_part}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"task.dropout must be at least 0 and less than 1, not {self.dropout}")
