"""The data of the benchmark: in memory, in image files, and mapped from one large file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from .settings import TaskConfig

TOKENS = 128
"""in one sample"""


class Data(NamedTuple):
    """Both sets."""

    train: Any
    val: Any
    shape: tuple[int, ...]
    """of one input"""


class InMemory:
    """Tensors that answer a whole batch at once, as those of the template's own tasks do."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return inputs (batch, ...) and targets (batch,)."""
        chosen = torch.tensor(indices)
        return self.inputs[chosen], self.targets[chosen]


class Files:
    """Image files of any size, decoded and scaled one by one."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files = sorted(folder.glob("*.png"))[:size]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image (3, 32, 32) and a label."""
        image = Image.open(self.files[index]).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(image, np.float32) / 128 - 1).permute(2, 0, 1), index % 10


class Tokens:
    """Stretches of one file that no process reads as a whole."""

    def __init__(self, file: Path, first: int, size: int) -> None:
        self.tokens = np.memmap(file, np.uint8, mode="r")
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return tokens (TOKENS,) and those that follow them."""
        start = (self.first + index) * TOKENS
        stretch = torch.from_numpy(self.tokens[start : start + TOKENS + 1].astype(np.int64))
        return stretch[:-1], stretch[1:]


def load(settings: TaskConfig) -> Data:
    """Return what ``task.data`` names."""
    folder, size, val_size = Path(settings.folder), settings.size, settings.val_size
    if settings.data == "files":
        return Data(Files(folder, size), Files(folder, val_size), (3, 32, 32))
    if settings.data == "tokens":
        file = folder / "tokens"
        return Data(Tokens(file, 0, size), Tokens(file, size, val_size), (TOKENS,))
    shapes = {"images": (3, 32, 32), "28x28": (1, 28, 28)}
    if settings.data in shapes:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(size + val_size, *shapes[settings.data], generator=generator)
        targets = torch.randint(0, 10, (size + val_size,), generator=generator)
    else:
        pixels, labels = load_digits(return_X_y=True)
        inputs = torch.from_numpy(pixels.astype(np.float32) / 8 - 1).reshape(-1, 1, 8, 8)
        targets = torch.from_numpy(labels)
        size = 1437
    # The validation set may be larger than what there is: it is repeated.
    rest = torch.arange(val_size) % (len(targets) - size) + size
    train, val = InMemory(inputs[:size], targets[:size]), InMemory(inputs[rest], targets[rest])
    return Data(train, val, tuple(inputs.shape[1:]))
