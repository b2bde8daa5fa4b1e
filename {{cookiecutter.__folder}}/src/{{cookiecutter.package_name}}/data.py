"""Datasets, and which process gets which samples when.

A dataset answers a whole batch at once (``__getitems__``), from memory where it can: fetching samples one by one
would cost more than a small model's step.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from . import collectives
from .checks import check_batch_size
from .config import DataConfig, UsageError

Indices = npt.NDArray[np.int64]
Batch = tuple[Tensor, Tensor]

# A fixed size, so that each evaluation batch holds the same samples on every world size.
EVALUATION_BATCH_SIZE = 256


class ImageDataset(Protocol):
    """Labelled images that are read a batch at a time."""

    shape: tuple[int, int, int]
    """channels, height and width of one image"""
    num_classes: int

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Indices) -> Batch:
        """Return images (batch, channels, height, width), float32 about 0, and labels (batch,), int64."""
        ...


class TensorImages:
    """Images that fit in memory, as uint8 or float32 (samples, channels, height, width).

    ``scale`` and ``shift`` turn them into the float32 values that the model sees: image * scale + shift.
    """

    def __init__(self, images: Tensor, labels: Tensor, num_classes: int, scale: float, shift: float) -> None:
        self.images, self.labels = images, labels
        self.num_classes, self.scale, self.shift = num_classes, scale, shift
        self.shape = (images.shape[1], images.shape[2], images.shape[3])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Indices) -> Batch:
        chosen = torch.from_numpy(indices)
        images = self.images[chosen].to(torch.float32).mul_(self.scale).add_(self.shift)
        return images, self.labels[chosen]


class FolderImages:
    """Images of a torchvision ``ImageFolder``, decoded on request, as (batch, 3, image_size, image_size)."""

    def __init__(self, folder: Path, image_size: int) -> None:
        torchvision = import_torchvision("folder")
        from torchvision import transforms

        if not folder.is_dir():
            raise UsageError(f"data.root has no folder {folder}: put one folder of images per class there")
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
            raise UsageError(f"data.root: {error}") from None
        self.num_classes = len(self.images.classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Indices) -> Batch:
        images = torch.empty(len(indices), *self.shape)
        labels = torch.empty(len(indices), dtype=torch.int64)
        for i, index in enumerate(indices):
            images[i], labels[i] = self.images[int(index)]
        return images, labels


class TrainingBatches:
    """One rank's share of every global batch; what it yields depends on nothing but the arguments below.

    Step ``s`` of epoch ``e`` is the same set of samples on every world size, cut into equal slices: the mean of the
    slices' gradients is the gradient of the global batch. The samples that do not fill a last batch are left out of
    that epoch, other ones each time.

    Args:
        size: samples in the training set.
        batch_size: samples of one step, over all ranks.

    Raises:
        UsageError: if the global batch is not divisible by the world size, or is larger than the training set.
    """

    def __init__(self, size: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        check_batch_size(batch_size, [world_size])
        if batch_size > size:
            raise UsageError(f"data.batch_size {batch_size} is larger than the training set: choose at most {size}")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.share = batch_size // world_size
        self.offset = rank * self.share
        self.epoch = self.first_step = 0

    def __len__(self) -> int:
        return self.size // self.batch_size

    def start_at(self, iteration: int) -> None:
        """Let the next pass begin after ``iteration`` steps of the whole training."""
        self.epoch, self.first_step = divmod(iteration, len(self))

    def __iter__(self) -> Iterator[Indices]:
        order = epoch_order(self.size, self.seed, self.epoch)
        for step in range(self.first_step, len(self)):
            begin = step * self.batch_size + self.offset
            yield order[begin : begin + self.share]


class EvaluationBatches:
    """Batches of fixed content, dealt to the ranks in turn; no sample is repeated to even out the shares.

    Because every batch is whole on one rank, the metrics are the same numbers on every world size. A rank that gets
    none yields one empty batch, as every rank has to take part in the reduction.
    """

    def __init__(self, size: int, rank: int, world_size: int) -> None:
        starts = range(rank * EVALUATION_BATCH_SIZE, size, world_size * EVALUATION_BATCH_SIZE)
        samples = np.arange(size)
        self.batches = [samples[start : start + EVALUATION_BATCH_SIZE] for start in starts] or [samples[:0]]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.batches)


@lru_cache(maxsize=2)
def epoch_order(size: int, seed: int, epoch: int) -> Indices:
    """Return the order of all samples in one epoch, (size,), a pure function of the arguments."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator).numpy()


def create_datasets(config: DataConfig) -> tuple[ImageDataset, ImageDataset]:
    """Return the training and the validation set.

    Raises:
        UsageError: if the files are not there, cannot be downloaded, or torchvision is missing.
    """
    return {
        "digits": _digits,
        "cifar10": _cifar10,
        "folder": _folder,
        "synthetic": _synthetic,
    }[config.dataset](config)


def create_loader(
    dataset: ImageDataset, batches: TrainingBatches | EvaluationBatches, num_workers: int
) -> DataLoader[Any]:
    """Return what reads ``batches`` of ``dataset``, with ``num_workers`` processes beside this one."""
    return DataLoader(
        dataset,  # type: ignore[arg-type]  # __getitems__ is all that the loader calls
        batch_sampler=batches,  # type: ignore[arg-type]  # indices may come as an array
        collate_fn=_as_is,  # type: ignore[arg-type]  # the dataset has answered with a batch
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
        # Forked loaders would inherit the threads and sockets of the process group.
        multiprocessing_context="spawn" if num_workers > 0 else None,
    )


def import_torchvision(dataset: str) -> Any:
    """Return torchvision, which only the datasets of image files need."""
    try:
        import torchvision
    except ImportError:
        raise UsageError(f"data.dataset {dataset} needs torchvision: pip install -e '.[vision]'", 1) from None
    except RuntimeError as error:
        # Its compiled operators load into the torch that they were built for, and no other.
        raise UsageError(
            f"torchvision does not fit torch {torch.__version__} ({error}): install both anew", 1
        ) from None
    return torchvision


def _as_is(batch: Batch) -> Batch:
    return batch


def _digits(config: DataConfig) -> tuple[ImageDataset, ImageDataset]:
    # The file behind load_digits of sklearn.datasets, whose import brings all of scipy: seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml asks for scikit-learn"
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    images = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64]).to(torch.int64)
    # The file groups writers: shuffle once, the same way in every run, before cutting off the last fifth.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(labels) * 4 // 5
    train, val = order[:cut], order[cut:]
    return (
        TensorImages(images[train], labels[train], 10, scale=1 / 8, shift=-1),
        TensorImages(images[val], labels[val], 10, scale=1 / 8, shift=-1),
    )


def _cifar10(config: DataConfig) -> tuple[ImageDataset, ImageDataset]:
    cifar10 = import_torchvision("cifar10").datasets.CIFAR10
    collectives.local_rank_zero_first(lambda: cifar10(config.root, download=True), "download CIFAR-10")

    def part(train: bool) -> ImageDataset:
        source = cifar10(config.root, train=train)
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
        return TensorImages(images, torch.tensor(source.targets), 10, scale=1 / 64, shift=-2)

    return part(True), part(False)


def _folder(config: DataConfig) -> tuple[ImageDataset, ImageDataset]:
    train_set = FolderImages(Path(config.root) / "train", config.image_size)
    val_set = FolderImages(Path(config.root) / "val", config.image_size)
    if train_set.images.classes != val_set.images.classes:
        raise UsageError(
            f"{config.root}/train and {config.root}/val hold different classes: give both the same folders"
        )
    return train_set, val_set


def _synthetic(config: DataConfig) -> tuple[ImageDataset, ImageDataset]:
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> ImageDataset:
        shape = (size, 3, config.image_size, config.image_size)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 10, (size,), generator=generator)
        return TensorImages(images, labels, 10, scale=1 / 64, shift=-2)

    return part(config.synthetic_size), part(math.ceil(config.synthetic_size / 8))
