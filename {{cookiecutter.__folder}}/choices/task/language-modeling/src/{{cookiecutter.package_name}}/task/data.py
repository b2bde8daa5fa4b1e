"""The tokens: bytes of a text file. Each batch reads only its own windows."""

from __future__ import annotations

import os
import random
import socket
import sysconfig
from pathlib import Path
from typing import NamedTuple

import ignite.distributed as idist
import numpy as np
import torch
from torch import Tensor

from ..runtime import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]

VOCABULARY = 256
EVALUATION_BATCH_SIZE = 64


class Windows:
    """Consecutive windows of ``context`` tokens in a part of a file, which may be larger than the memory.

    Args:
        first: first byte of the part.
        size: bytes of the part.
    """

    def __init__(self, file: Path, first: int, size: int, context: int) -> None:
        self.file, self.first, self.size, self.context = file, first, size, context

    def __len__(self) -> int:
        # The target of a window's last token is the first token of the next window.
        return (self.size - 1) // self.context

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return tokens (batch, context), and for each of them the next token."""
        # Mapped here, because a DataLoader worker would be sent the content of a mapped file.
        tokens = np.memmap(self.file, np.uint8, "r")
        positions = self.first + np.array(indices)[:, None] * self.context + np.arange(self.context + 1)
        windows = torch.from_numpy(tokens[positions].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


class Data(NamedTuple):
    """Training and validation set."""

    train: Windows
    val: Windows
    title: str


def load(settings: TaskConfig) -> Data:
    """Return windows of the text: its first ``val_tokens`` bytes for validation, the next ``train_tokens`` for training.

    Raises:
        UsageError: if the text is missing or too short.
    """
    file = Path(settings.text) if settings.text else _source_code_of_python(Path(settings.root))
    if not file.is_file():
        raise UsageError(f"task.text {file} is not a file. Choose another one.")
    size, wanted = file.stat().st_size, settings.val_tokens + settings.train_tokens
    if size < wanted:
        raise UsageError(f"{file} has {size} bytes, not {wanted}. Lower task.train_tokens or task.val_tokens.")
    val = Windows(file, 0, settings.val_tokens, settings.context)
    train = Windows(file, settings.val_tokens, settings.train_tokens, settings.context)
    return Data(train, val, settings.text or "source code of Python")


def _source_code_of_python(folder: Path) -> Path:
    """Return a file with the modules of the standard library, shuffled; one process of each node writes it once.

    The file is kept, so that an update of Python does not change the validation set of a checkpoint.
    """
    file = folder / "python.txt"
    with idist.one_rank_first(local=True):
        if not file.exists():
            library = Path(sysconfig.get_path("stdlib"))
            installed = {"site-packages", "dist-packages"}
            modules = sorted(module for module in library.rglob("*.py") if not installed & set(module.parts))
            random.Random(0).shuffle(modules)
            folder.mkdir(parents=True, exist_ok=True)
            # Another node may write it too.
            draft = file.with_suffix(f".{socket.gethostname()}.{os.getpid()}")
            with draft.open("wb") as text:
                text.writelines(module.read_bytes() for module in modules)
            draft.replace(file)
    return file
