"""What the training aims at: two losses, each for one of the networks, and how far fakes are from real images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ignite.metrics import Metric
from ignite.metrics.gan import FID
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..config import Config
from ..distributed import backend
from .data import Batch
from .settings import TaskConfig

SCORE = "frechet_distance"
HIGHER_IS_BETTER = False
LOSS_LABEL = "both losses (nats)"
# Fakes, and what the discriminator says of them and of real images.
Outputs = tuple[Tensor, Tensor, Tensor]


def create_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return AdamW with a group of parameters for each network: the names are those of the losses."""
    # The rate of the first group is the one that metrics.jsonl has.
    rates = {"generator": config.optim.lr, "discriminator": config.task.discriminator_lr}
    groups = [{"name": name, "params": model.get_submodule(name).parameters(), "lr": lr} for name, lr in rates.items()]
    betas, fused = (0.0, config.task.beta2), backend.FUSED_OPTIMIZER
    return torch.optim.AdamW(groups, betas=betas, weight_decay=config.optim.weight_decay, fused=fused)


def losses(model: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of a group of parameters and the loss that it is updated by, one after the other.

    What stands behind a ``yield`` sees the group already updated.
    """
    images, noise = batch
    fakes = model.generator(noise)
    yield "discriminator", blunders(model.discriminator(images), model.discriminator(fakes.detach()))
    yield "generator", softplus(-model.discriminator(fakes)).mean()


def forward(model: Any, batch: Batch) -> tuple[Outputs, Tensor]:
    """Return what an evaluation measures, and the images (batch, 1, 8, 8) that the fakes should look like."""
    images, noise = batch
    fakes = model(noise)
    return (fakes, model.discriminator(fakes), model.discriminator(images)), images


def loss(outputs: Outputs, images: Tensor) -> Tensor:
    """Return the sum of both losses, in nats."""
    _, fake, real = outputs
    return blunders(real, fake) + softplus(-fake).mean()


def blunders(real: Tensor, fake: Tensor) -> Tensor:
    """Return the loss of the discriminator for its scores (batch,) of real images and of fakes."""
    return softplus(-real).mean() + softplus(fake).mean()


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the Fréchet distance between fakes and images, each averaged to 4 x 4 pixels: with few images, more are noise."""
    pixels = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    fid = FID(16, pixels, output_transform=lambda pair: (pair[0][0], pair[1]), device=device)
    return {"frechet_distance": fid}


def write_examples(model: Any, folder: Path, step: int, settings: TaskConfig) -> None:
    """Write 100 fakes, always of the same noise, as folder/STEP.png."""
    from matplotlib import image

    weight = next(model.parameters())
    noise = torch.randn(100, settings.noise, generator=torch.Generator().manual_seed(0))
    fakes = nn.functional.pad(model(noise.to(weight.device)).float().cpu(), (1, 1, 1, 1), value=-1)
    grid = fakes.reshape(10, 10, 10, 10).transpose(1, 2).reshape(100, 100)
    image.imsave(folder / f"{step:06}.png", grid.numpy(), cmap="gray", vmin=-1, vmax=1)
