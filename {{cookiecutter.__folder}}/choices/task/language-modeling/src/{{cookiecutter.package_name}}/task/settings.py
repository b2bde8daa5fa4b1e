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
    """What is learned, from which text, by how large a network."""

    text: str | None = None
    """file of text; null is the source code of Python's standard library"""
    root: str = "data"
    """folder in which that is written"""
    train_tokens: int = 1_000_000
    """bytes of the text to learn from"""
    val_tokens: int = 100_000
    """bytes of the text that are kept for validation"""
    context: int = 64
    """tokens that the model sees at a time"""
    width: int = 64
    """numbers that stand for each token between the layers"""
    layers: int = 2
    """blocks of attention and a feed-forward network"""
    heads: int = 4
    """of the attention; they share the width"""
    dropout: float = 0.0
    """part of the numbers that is left out of a step"""

    def __post_init__(self) -> None:
        for name in ("train_tokens", "val_tokens", "context", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"task.width {self.width} is not divisible by task.heads {self.heads}")
        if min(self.train_tokens, self.val_tokens) <= self.context:
            raise ValueError(f"task.train_tokens and task.val_tokens must be more than task.context {self.context}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"task.dropout must be at least 0 and less than 1, not {self.dropout}")


def requirements(config: Config) -> Iterator[Check]:
    """Yield whether the text is there."""
    text = config.task.text
    missing = text is not None and not Path(text).is_file()
    found = f"there is no file {text}" if missing else text or "the source code of Python's standard library"
    yield Check("data", not missing, found, "choose another task.text")
