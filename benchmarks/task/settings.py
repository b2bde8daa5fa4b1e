"""What is trained in each case of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaskConfig:
    """One kind of data, and the model for it."""

    data: Literal["digits", "images", "28x28", "files", "tokens"] = "digits"
    """digits of scikit-learn and random images lie in memory; files are decoded; tokens are mapped from a file"""
    model: Literal["cnn", "mlp", "deep", "bigram", "mnist"] = "cnn"
    width: int = 32
    size: int = 1024
    """training samples, but for digits"""
    val_size: int = 256
    folder: str = ""
    """of the files and tokens, which throughput.py has made"""
