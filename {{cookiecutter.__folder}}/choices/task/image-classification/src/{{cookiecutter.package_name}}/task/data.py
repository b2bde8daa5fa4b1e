"""The images: digits, CIFAR-10, folders of files, or random ones for benchmarks.

Datasets in memory return a whole batch from ``__getitems__``: reading samples one by one would take longer than a step of
a small model.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import ignite.distributed as idist
import numpy as np
import torch
from torch import Tensor, nn

from ..runtime import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Data(NamedTuple):
    """Training and validation set, and what the model needs to know about them."""

    train: Any
    val: Any
    title: str
    """name in the log and in plots"""
    shape: tuple[int, int, int]
    """channels, height and width of an image, whose values are -1 for black to 1 for white"""
    classes: tuple[str, ...]
    """names, in the order of the labels"""


class TensorImages:
    """Images in memory, (samples, channels, height, width), with values from 0 to ``white``."""

    def __init__(self, images: Tensor, labels: Tensor, white: int, augment: str = "none") -> None:
        self.images, self.labels, self.white, self.augment = images, labels, white, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int], seeds: Tensor) -> Batch:
        """Return images (batch, channels, height, width), float32 from -1 to 1, and labels (batch,), int64.

        Args:
            seeds: one for each image, (batch,), which determines its augmentation on any number of processes.
        """
        chosen = torch.tensor(indices, dtype=torch.int64)
        images = self.images[chosen].to(torch.float32).mul_(2 / self.white).sub_(1)
        if self.augment != "none":
            images = augmented(images, seeds, mirror=self.augment == "mirror")
        return images, self.labels[chosen]


def augmented(images: Tensor, seeds: Tensor, mirror: bool) -> Tensor:
    """Return each image shifted, and with ``mirror`` perhaps mirrored, as its seed determines."""
    count, channels, height, width = images.shape
    most = max(height // 8, 1)
    shifts = 2 * most + 1
    padded = nn.functional.pad(images, (most,) * 4, mode="replicate")
    rows = (seeds % shifts)[:, None] + torch.arange(height)
    columns = (seeds // shifts % shifts)[:, None] + torch.arange(width)
    if mirror:
        mirrored = (seeds // shifts**2 % 2).bool()
        columns[mirrored] = columns[mirrored].flip(1)
    samples = torch.arange(count)[:, None, None, None]
    return padded[samples, torch.arange(channels)[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def load(settings: TaskConfig) -> Data:
    """Return the data that ``task.dataset`` names.

    Raises:
        UsageError: if files or torchvision are missing, or a download fails.
    """
    loaders = {"digits": _digits, "cifar10": _cifar10, "folder": _folder, "synthetic": _synthetic}
    return loaders[settings.dataset](settings)


def _digits(settings: TaskConfig) -> Data:
    # The file of sklearn.datasets.load_digits, whose import takes seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml requires scikit-learn"
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    # The file is sorted by writer: shuffle it, always in the same way, before cutting off the last fifth.
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0)).numpy()]
    images, labels = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8), torch.from_numpy(table[:, 64]).long()
    cut = len(table) * 4 // 5
    train = TensorImages(images[:cut], labels[:cut], 16, settings.augment)
    return Data(train, TensorImages(images[cut:], labels[cut:], 16), "digits", (1, 8, 8), DIGITS)


def _cifar10(settings: TaskConfig) -> Data:
    cifar10 = import_torchvision().datasets.CIFAR10
    # The other processes of a node wait for the download.
    with idist.one_rank_first(local=True):
        cifar10(settings.root, download=True)

    def part(train: bool, augment: str) -> TensorImages:
        source = cifar10(settings.root, train=train)
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
        return TensorImages(images, torch.tensor(source.targets), 255, augment)

    return Data(part(True, settings.augment), part(False, "none"), "CIFAR-10", (3, 32, 32), CIFAR10)


def _folder(settings: TaskConfig) -> Data:
    torchvision = import_torchvision()
    transforms, size = torchvision.transforms, settings.image_size

    def part(name: str, augment: str) -> Any:
        # These use torch's random numbers, which are seeded for each image.
        shift = [transforms.RandomCrop(size, max(size // 8, 1), padding_mode="edge")]
        changes = {"none": [], "shift": shift, "mirror": [*shift, transforms.RandomHorizontalFlip()]}[augment]
        resize = [transforms.Resize(size), transforms.CenterCrop(size)]
        normalize = [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        steps = transforms.Compose([*resize, *changes, *normalize])
        try:
            return torchvision.datasets.ImageFolder(f"{settings.root}/{name}", steps)
        except OSError as error:
            raise UsageError(f"task.root {settings.root}: {error}. Put images into {name}/CLASS/ there.") from None

    train, val = part("train", settings.augment), part("val", "none")
    if train.classes != val.classes:
        raise UsageError(
            f"task.root {settings.root} has different classes in train and val. Use the same folders in both."
        )
    return Data(train, val, settings.root, (3, size, size), tuple(train.classes))


def import_torchvision() -> Any:
    """Return torchvision, which only CIFAR-10 and folders need."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        # RuntimeError if it was built for another torch.
        raise UsageError(
            f"torchvision cannot be imported ({error}). Run python3 -m pip install -e '.[vision]'.", 1
        ) from None
    return torchvision


def _synthetic(settings: TaskConfig) -> Data:
    generator, shape = torch.Generator().manual_seed(0), (3, settings.image_size, settings.image_size)

    def part(size: int, augment: str) -> TensorImages:
        images = torch.randint(0, 256, (size, *shape), generator=generator, dtype=torch.uint8)
        return TensorImages(images, torch.randint(0, 10, (size,), generator=generator), 255, augment)

    train, val = part(settings.synthetic_size, settings.augment), part(-(-settings.synthetic_size // 8), "none")
    return Data(train, val, "synthetic images", shape, DIGITS)
