"""The images: where they come from, and how they are read.

A dataset here answers a whole batch at once (``__getitems__``), from memory where it can: fetching samples one by one
would cost more than a small model's step. One that has only ``__getitem__`` serves as well.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import collectives
from ..errors import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]


class Images(Protocol):
    """Labelled images that are read a batch at a time."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return images (batch, channels, height, width), float32 about 0, and labels (batch,), int64."""
        ...


class Data(NamedTuple):
    """The two sets of images, and what the model needs to know of them."""

    train: Images
    val: Images
    title: str
    """for people: what this is called in tables and plots"""
    shape: tuple[int, int, int]
    """channels, height and width of one image"""
    num_classes: int


class TensorImages:
    """Images that fit in memory, as uint8 or float32 (samples, channels, height, width).

    ``scale`` and ``shift`` turn them into the float32 values that the model sees: image * scale + shift.
    """

    def __init__(self, images: Tensor, labels: Tensor, scale: float, shift: float) -> None:
        self.images, self.labels, self.scale, self.shift = images, labels, scale, shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.tensor(indices, dtype=torch.int64)
        images = self.images[chosen].to(torch.float32).mul_(self.scale).add_(self.shift)
        return images, self.labels[chosen]


class FolderImages:
    """Images of a torchvision ``ImageFolder``, decoded on request, as (batch, 3, image_size, image_size)."""

    def __init__(self, folder: Path, image_size: int) -> None:
        torchvision = import_torchvision("folder")
        from torchvision import transforms

        if not folder.is_dir():
            raise UsageError(f"task.root has no folder {folder}: put one folder of images per class there")
        self.shape = (3, image_size, image_size)
        transform = transforms.Compose(
            [
                transforms.Resize(image_size),
                transforms.CenterCrop(image_size),
                transforms.ToTensor(),
                transforms.Normalize((0.5,) * 3, (0.25,) * 3),
            ]
        )
        try:
            self.images = torchvision.datasets.ImageFolder(str(folder), transform)
        except FileNotFoundError as error:
            raise UsageError(f"task.root: {error}") from None

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> Batch:
        images = torch.empty(len(indices), *self.shape)
        labels = torch.empty(len(indices), dtype=torch.int64)
        for i, index in enumerate(indices):
            images[i], labels[i] = self.images[index]
        return images, labels


def load(settings: TaskConfig) -> Data:
    """Return the data that ``task.dataset`` names.

    Raises:
        UsageError: if the files are not there, cannot be downloaded, or torchvision is missing.
    """
    return {
        "digits": _digits,
        "cifar10": _cifar10,
        "folder": _folder,
        "synthetic": _synthetic,
    }[settings.dataset](settings)


def import_torchvision(dataset: str) -> Any:
    """Return torchvision, which only the datasets of image files need."""
    try:
        import torchvision
    except ImportError:
        raise UsageError(f"task.dataset {dataset} needs torchvision: pip install -e '.[vision]'", 1) from None
    except RuntimeError as error:
        # Its compiled operators load into the torch that they were built for, and no other.
        raise UsageError(
            f"torchvision does not fit torch {torch.__version__} ({error}): install both anew", 1
        ) from None
    return torchvision


def _digits(settings: TaskConfig) -> Data:
    # The file behind load_digits of sklearn.datasets, whose import brings all of scipy: seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml asks for scikit-learn"
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    images = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64]).to(torch.int64)
    # The file groups writers: shuffle once, the same way in every run, before cutting off the last fifth.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(labels) * 4 // 5
    train, val = (
        TensorImages(images[part], labels[part], scale=1 / 8, shift=-1) for part in (order[:cut], order[cut:])
    )
    return Data(train, val, "digits", shape=(1, 8, 8), num_classes=10)


def _cifar10(settings: TaskConfig) -> Data:
    cifar10 = import_torchvision("cifar10").datasets.CIFAR10
    collectives.local_rank_zero_first(lambda: cifar10(settings.root, download=True), "download CIFAR-10")

    def part(train: bool) -> Images:
        source = cifar10(settings.root, train=train)
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
        return TensorImages(images, torch.tensor(source.targets), scale=1 / 64, shift=-2)

    return Data(part(True), part(False), "CIFAR-10", shape=(3, 32, 32), num_classes=10)


def _folder(settings: TaskConfig) -> Data:
    train, val = (FolderImages(Path(settings.root) / part, settings.image_size) for part in ("train", "val"))
    if train.images.classes != val.images.classes:
        raise UsageError(
            f"{settings.root}/train and {settings.root}/val hold different classes: give both the same folders"
        )
    return Data(train, val, settings.root, train.shape, num_classes=len(train.images.classes))


def _synthetic(settings: TaskConfig) -> Data:
    generator = torch.Generator().manual_seed(0)
    shape = (3, settings.image_size, settings.image_size)

    def part(size: int) -> Images:
        images = torch.randint(0, 256, (size, *shape), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 10, (size,), generator=generator)
        return TensorImages(images, labels, scale=1 / 64, shift=-2)

    train, val = part(settings.synthetic_size), part(math.ceil(settings.synthetic_size / 8))
    return Data(train, val, "synthetic images", shape, num_classes=10)
