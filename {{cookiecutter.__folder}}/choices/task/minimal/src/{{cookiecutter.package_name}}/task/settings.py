"""The settings of the task; read before torch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checks import Check

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True)
class TaskConfig:
    """Each field is an option ``--task.NAME``, and a line of configs/default.yaml."""

    width: int = 16
    """hidden units"""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"task.width must be at least 1, not {self.width}")


def validate(config: Config) -> None:
    """Raise ValueError where settings of several sections do not fit together."""


def requirements(config: Config) -> Iterator[Check]:
    """Yield what this machine must have, such as files or packages."""
    yield from ()
