"""The tokens: bytes of real text in a file, of which each batch reads its own windows and no more."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import collectives, storage
from ..errors import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]

VOCABULARY = 256
EVALUATION_BATCH_SIZE = 64
# Folders of the standard library that hold what is not of it.
INSTALLED = {"site-packages", "dist-packages"}


class Windows:
    """Windows of ``context`` tokens, one behind the other, in a part of a file that may be larger than the memory.

    Args:
        first: the part's first byte.
        size: the part's bytes.
    """

    def __init__(self, file: Path, first: int, size: int, context: int) -> None:
        self.file, self.first, self.size, self.context = file, first, size, context

    def __len__(self) -> int:
        # The last token of a window is the first of the next one: it is only a target.
        return (self.size - 1) // self.context

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return tokens (batch, context) and, for each of them, the token that follows."""
        # Opened here, as a loader process would be sent the content of an open one.
        tokens = np.memmap(self.file, np.uint8, "r")
        places = self.first + np.array(indices)[:, None] * self.context + np.arange(self.context + 1)
        windows = torch.from_numpy(tokens[places].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


class Data(NamedTuple):
    """The two sets of windows."""

    train: Windows
    val: Windows
    title: str


def load(settings: TaskConfig) -> Data:
    """Return windows of the text: its first ``val_tokens`` bytes are for validation, the next ``train_tokens`` to train.

    Raises:
        UsageError: if the text is too short, or cannot be written.
    """
    file = Path(settings.text) if settings.text else _source_code_of_python(Path(settings.root))
    size, wanted = file.stat().st_size, settings.val_tokens + settings.train_tokens
    if size < wanted:
        raise UsageError(f"{file} has {size} bytes, not {wanted}: lower task.train_tokens or task.val_tokens", 1)
    val = Windows(file, 0, settings.val_tokens, settings.context)
    train = Windows(file, settings.val_tokens, settings.train_tokens, settings.context)
    return Data(train, val, settings.text or "source code of Python")


def _source_code_of_python(folder: Path) -> Path:
    """Return a file of the standard library's modules, mixed; the first process of each node writes it if need be.

    It is kept: a checkpoint of this folder is measured with the same text when Python has been updated.
    """
    file = folder / "python.txt"

    def write() -> None:
        if file.exists():
            return
        library = Path(sysconfig.get_path("stdlib"))
        # Their order is the same in every run.
        modules = sorted(file for file in library.rglob("*.py") if not INSTALLED & set(file.parts))
        random.Random(0).shuffle(modules)
        folder.mkdir(parents=True, exist_ok=True)
        with storage.replacing(file) as text:
            text.writelines(module.read_bytes() for module in modules)

    collectives.local_rank_zero_first(write, "write the text")
    return file
