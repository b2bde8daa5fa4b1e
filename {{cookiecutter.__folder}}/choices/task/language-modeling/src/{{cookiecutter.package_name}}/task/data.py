"""The tokens: bytes of real text in two files, of which each batch reads its own windows and no more."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import collectives
from ..errors import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]

VOCABULARY = 256
EVALUATION_BATCH_SIZE = 64


class Windows:
    """Windows of ``context`` tokens, one behind the other, in a file of bytes that may be larger than the memory."""

    def __init__(self, file: Path, context: int) -> None:
        self.file, self.context = file, context
        # The last token of a window is the first of the next one: it is only a target.
        self.count = (file.stat().st_size - 1) // context

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return tokens (batch, context) and, for each of them, the token that follows."""
        # Opened here, as a loader process would be sent the content of an open one.
        tokens = np.memmap(self.file, np.uint8, "r")
        places = np.array(indices)[:, None] * self.context + np.arange(self.context + 1)
        windows = torch.from_numpy(tokens[places].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


class Data(NamedTuple):
    """The two sets of windows."""

    train: Windows
    val: Windows
    title: str


def load(settings: TaskConfig) -> Data:
    """Return windows of the text; the first process of each node writes their files, unless they are there.

    Raises:
        UsageError: if the text is too short, or the files cannot be written.
    """
    name = Path(settings.text).stem if settings.text else "python"
    sizes = {"val": settings.val_tokens, "train": settings.train_tokens}
    files = {part: Path(settings.root) / f"{name}-{part}-{size}.bin" for part, size in sizes.items()}

    def write() -> None:
        if all(files[part].exists() and files[part].stat().st_size == size for part, size in sizes.items()):
            return
        text = _read(settings.text, sum(sizes.values()))
        for part, size in sizes.items():
            files[part].parent.mkdir(parents=True, exist_ok=True)
            draft = files[part].with_suffix(".part")
            draft.write_bytes(text[:size])
            draft.replace(files[part])
            text = text[size:]

    collectives.local_rank_zero_first(write, "write the tokens")
    train, val = (Windows(files[part], settings.context) for part in ("train", "val"))
    return Data(train, val, settings.text or "source code of Python")


def _read(file: str | None, size: int) -> bytes:
    """Return ``size`` bytes of text."""
    text = bytearray()
    for path in [Path(file)] if file else _standard_library():
        text += path.read_bytes()
        if len(text) >= size:
            return bytes(text[:size])
    raise UsageError(f"the text has {len(text)} bytes, not {size}: lower task.train_tokens or task.val_tokens", 1)


def _standard_library() -> Iterator[Path]:
    """Yield the modules of Python's standard library in an order that mixes them, the same in every run."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for file in folder.rglob("*.py") if not {"site-packages", "dist-packages"} & set(file.parts))
    random.Random(0).shuffle(files)
    yield from files
