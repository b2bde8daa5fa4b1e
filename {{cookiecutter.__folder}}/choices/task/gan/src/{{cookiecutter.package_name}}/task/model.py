"""The model: a generator and a discriminator, trained against each other."""

from __future__ import annotations

from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


class GAN(nn.Module):
    """Two networks (Goodfellow et al., "Generative adversarial nets", 2014)."""

    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(noise, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 64),
            nn.Tanh(),
            nn.Unflatten(1, (1, 8, 8)),
        )
        self.discriminator = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
            nn.Flatten(0),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return generated images (batch, 1, 8, 8), from -1 to 1, for noise (batch, numbers)."""
        images: Tensor = self.generator(noise)
        return images


def create_model(settings: TaskConfig, data: Data) -> GAN:
    """Return both networks as one module."""
    return GAN(settings.noise, settings.width)
