"""The images: where they come from, and how they are read.

A dataset in memory answers a whole batch at once (``__getitems__``): fetching samples one by one would cost more than a
small model's step. Files are read one by one.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import collectives
from ..errors import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Data(NamedTuple):
    """The two sets of images, and what the model needs to know of them."""

    train: TensorImages | FolderImages
    val: TensorImages | FolderImages
    title: str
    """for people: what this is called in tables and plots"""
    shape: tuple[int, int, int]
    """channels, height and width of one image"""
    classes: tuple[str, ...]
    """their names, in the order of the labels"""
    span: float
    """black is -span for the model, white is span"""


class TensorImages:
    """Images that fit in memory, as uint8 or float32 (samples, channels, height, width).

    ``scale`` and ``shift`` turn them into the float32 values that the model sees: image * scale + shift.
    """

    def __init__(self, images: Tensor, labels: Tensor, scale: float, shift: float, augment: str = "none") -> None:
        self.images, self.labels, self.scale, self.shift = images, labels, scale, shift
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int], seeds: Tensor) -> Batch:
        """Return images (batch, channels, height, width), float32 about 0, and labels (batch,), int64.

        Args:
            seeds: a number for each image, (batch,), from which its changes follow, if there are any.
        """
        chosen = torch.tensor(indices, dtype=torch.int64)
        images = self.images[chosen].to(torch.float32).mul_(self.scale).add_(self.shift)
        if self.augment != "none":
            images = changed(images, seeds, mirror=self.augment == "mirror")
        return images, self.labels[chosen]


def changed(images: Tensor, seeds: Tensor, mirror: bool) -> Tensor:
    """Return each image (channels, height, width) moved, and perhaps mirrored, as its own seed says."""
    count, channels, height, width = images.shape
    most = max(height // 8, 1)
    moves = 2 * most + 1
    padded = nn.functional.pad(images, (most,) * 4, mode="replicate")
    rows = (seeds % moves)[:, None] + torch.arange(height)
    columns = (seeds // moves % moves)[:, None] + torch.arange(width)
    if mirror:
        mirrored = (seeds // moves**2 % 2).bool()
        columns[mirrored] = columns[mirrored].flip(1)
    which = torch.arange(count)[:, None, None, None]
    return padded[which, torch.arange(channels)[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


class FolderImages:
    """Images of a torchvision ``ImageFolder``, decoded on request, as (3, image_size, image_size)."""

    def __init__(self, folder: Path, image_size: int, augment: str = "none") -> None:
        torchvision = import_torchvision("folder")
        from torchvision import transforms

        if not folder.is_dir():
            raise UsageError(f"task.root has no folder {folder}: put one folder of images per class there")
        self.shape = (3, image_size, image_size)
        # They draw from torch's generator, which is seeded for each image.
        shift = [transforms.RandomCrop(image_size, max(image_size // 8, 1), padding_mode="edge")]
        changes = {"none": [], "shift": shift, "mirror": [*shift, transforms.RandomHorizontalFlip()]}[augment]
        transform = transforms.Compose(
            [
                transforms.Resize(image_size),
                transforms.CenterCrop(image_size),
                *changes,
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

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, float32 about 0, and its label.

        Raises:
            UsageError: if the file is not an image.
        """
        image: Tensor
        label: int
        with naming(self.images.samples[index][0]):
            image, label = self.images[index]
        return image, label


@contextmanager
def naming(file: str, fix: str = "fix it or remove it") -> Iterator[None]:
    """Say which file it is that cannot be decoded inside the ``with`` block, and what to do.

    Raises:
        UsageError: if it is not an image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # Whoever opens a named pipe would wait for ever.
        if not os.path.isfile(file):
            raise OSError("it is gone, or no file")
        yield
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "of no known kind" if isinstance(error, UnidentifiedImageError) else error
        raise UsageError(f"{file} is not an image that can be read ({reason}): {fix}") from None


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

    def part(chosen: Tensor, augment: str = "none") -> TensorImages:
        return TensorImages(images[chosen], labels[chosen], 1 / 8, -1, augment)

    train, val = part(order[:cut], settings.augment), part(order[cut:])
    return Data(train, val, "digits", shape=(1, 8, 8), classes=DIGITS, span=1)


def _cifar10(settings: TaskConfig) -> Data:
    cifar10 = import_torchvision("cifar10").datasets.CIFAR10
    collectives.local_rank_zero_first(lambda: cifar10(settings.root, download=True), "download CIFAR-10")

    def part(train: bool, augment: str = "none") -> TensorImages:
        source = cifar10(settings.root, train=train)
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
        return TensorImages(images, torch.tensor(source.targets), 1 / 64, -2, augment)

    train, val = part(True, settings.augment), part(False)
    return Data(train, val, "CIFAR-10", shape=(3, 32, 32), classes=CIFAR10, span=2)


def _folder(settings: TaskConfig) -> Data:
    root, size = Path(settings.root), settings.image_size
    train, val = FolderImages(root / "train", size, settings.augment), FolderImages(root / "val", size)
    if train.images.classes != val.images.classes:
        raise UsageError(
            f"{settings.root}/train and {settings.root}/val hold different classes: give both the same folders"
        )
    return Data(train, val, settings.root, train.shape, classes=tuple(train.images.classes), span=2)


def _synthetic(settings: TaskConfig) -> Data:
    generator = torch.Generator().manual_seed(0)
    shape = (3, settings.image_size, settings.image_size)

    def part(size: int, augment: str = "none") -> TensorImages:
        images = torch.randint(0, 256, (size, *shape), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 10, (size,), generator=generator)
        return TensorImages(images, labels, 1 / 64, -2, augment)

    train, val = part(settings.synthetic_size, settings.augment), part(math.ceil(settings.synthetic_size / 8))
    return Data(train, val, "synthetic images", shape, classes=DIGITS, span=2)
