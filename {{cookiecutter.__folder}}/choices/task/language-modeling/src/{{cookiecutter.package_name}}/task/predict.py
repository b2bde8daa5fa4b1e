"""How a text goes on: ``predict --checkpoint FILE "def "``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .data import Data


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what the model writes after each of the beginnings."""
    for beginning in inputs:
        yield {"input": beginning, "text": generate(model, data.train.context, beginning)}


def generate(
    model: nn.Module, context: int, beginning: str, length: int = 400, temperature: float = 0.8, seed: int = 0
) -> str:
    """Return ``beginning`` and ``length`` bytes more, drawn one by one; the lower the temperature, the more likely ones."""
    generator = torch.Generator().manual_seed(seed)
    # Something to begin with.
    tokens = list(beginning.encode() or b"\n")
    for _ in range(length):
        scores = model(torch.tensor([tokens[-context:]]))[0, -1]
        chances = torch.softmax(scores / temperature, dim=0)
        tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    return bytes(tokens).decode(errors="replace")
