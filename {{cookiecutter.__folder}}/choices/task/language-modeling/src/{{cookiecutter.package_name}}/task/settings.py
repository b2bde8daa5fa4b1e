"""Settings of the task. Read before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskConfig:
    """Which text to learn, and with which network."""

    text: str | None = None
    """a text file; null is the source code of Python's standard library"""
    root: str = "data"
    """folder where that is written"""
    train_tokens: int = 1_000_000
    """bytes of the training set"""
    val_tokens: int = 100_000
    """bytes of the validation set"""
    context: int = 64
    """length of a window in tokens"""
    width: int = 64
    """size of the embedding of a token"""
    layers: int = 2
    """decoder blocks"""
    heads: int = 4
    """attention heads; must divide width"""
    dropout: float = 0.0
    """dropout probability"""

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
