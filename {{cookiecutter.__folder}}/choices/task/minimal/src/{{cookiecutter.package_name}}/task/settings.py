"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """Each field is an option ``--task.NAME`` and a line of configs/default.yaml."""

    width: int = 16
    """hidden units"""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"task.width must be at least 1, not {self.width}")
