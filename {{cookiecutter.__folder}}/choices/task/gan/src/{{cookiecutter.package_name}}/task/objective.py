"""The loss of each network, the metrics of the validation set, and the optimizer. step.py updates both networks."""

from __future__ import annotations

from typing import Any

import torch
from ignite.metrics import Metric
from ignite.metrics.gan import FID
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..config import Config
from ..optim import supports_fused
from ..runtime import UsageError
from .data import Batch

# The metric that chooses the best checkpoint, or "loss".
SCORE = "frechet_distance"
HIGHER_IS_BETTER = False
LOSS_LABEL = "sum of both losses (nats)"
# Generated images, and the discriminator's logits of them and of real images.
Outputs = tuple[Tensor, Tensor, Tensor]


def discriminator_loss(model: Any, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of real against generated images, in nats."""
    images, noise = batch
    with torch.no_grad():
        generated = model(noise)
    return real_or_generated(model.discriminator(images), model.discriminator(generated))


def generator_loss(model: Any, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of generated images that should look real, in nats."""
    _, noise = batch
    return softplus(-model.discriminator(model(noise))).mean()


def real_or_generated(real: Tensor, generated: Tensor) -> Tensor:
    """Return the loss of the discriminator from its logits (batch,) of real and of generated images."""
    return softplus(-real).mean() + softplus(generated).mean()


def forward(model: Any, batch: Batch) -> tuple[Outputs, Tensor]:
    """Return the outputs of an evaluation, and the real images (batch, 1, 8, 8)."""
    images, noise = batch
    generated = model(noise)
    return (generated, model.discriminator(generated), model.discriminator(images)), images


def loss(outputs: Outputs, images: Tensor) -> Tensor:
    """Return the sum of both losses of an evaluation, in nats."""
    _, generated, real = outputs
    return real_or_generated(real, generated) + softplus(-generated).mean()


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the Fréchet distance between generated and real images, averaged to 4 x 4 pixels: few samples, few features."""
    features = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    distance = FID(16, features, output_transform=lambda pair: (pair[0][0], pair[1]), device=device)
    return {"frechet_distance": distance}


def create_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return AdamW without momentum for one of the networks.

    Raises:
        UsageError: if ``optim.name`` is another optimizer.
    """
    if config.optim.name != "adamw":
        raise UsageError(f"optim.name {config.optim.name} does not train this task. Use adamw.")
    options: Any = {"betas": (0.0, config.task.beta2), "weight_decay": config.optim.weight_decay}
    return torch.optim.AdamW(model.parameters(), config.optim.lr, fused=supports_fused(model), **options)
