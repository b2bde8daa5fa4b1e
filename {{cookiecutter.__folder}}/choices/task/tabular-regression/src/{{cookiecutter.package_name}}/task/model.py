"""The model: a network of two hidden layers."""

from __future__ import annotations

from torch import Tensor, nn

from .data import Data
from .settings import TaskConfig


class Regressor(nn.Module):
    """A network that standardizes inputs and targets by the training rows, so that predictions are in the target's unit.

    Args:
        rows: training rows, (rows, columns), with the target in the last column.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, rows: Tensor, width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(dim=0))
        scale = rows.std(dim=0)
        self.register_buffer("scale", scale.where(scale > 0, 1.0))
        self.layers = nn.Sequential(
            nn.Linear(rows.shape[1] - 1, width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
            nn.Flatten(0),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return predictions (batch,), in the unit of the target, for inputs (batch, columns - 1)."""
        scaled = (inputs - self.mean[:-1]) / self.scale[:-1]
        result: Tensor = self.layers(scaled) * self.scale[-1] + self.mean[-1]
        return result


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network for rows like those of the training set."""
    return Regressor(data.train.table, settings.width, settings.dropout)
