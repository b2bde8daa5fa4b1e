"""The model: a generator and a discriminator, which learn from each other."""

from __future__ import annotations

from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


class GAN(nn.Module):
    """Two networks of Goodfellow et al., "Generative adversarial nets" (2014)."""

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
        """Return images (batch, 1, 8, 8) between -1 and 1 for noise (batch, numbers)."""
        images: Tensor = self.generator(noise)
        return images


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return both networks as one module."""
    return GAN(settings.noise, settings.width)
