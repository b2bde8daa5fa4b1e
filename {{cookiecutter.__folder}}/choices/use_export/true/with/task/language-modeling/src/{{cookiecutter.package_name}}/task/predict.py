"""Continues texts: ``predict --checkpoint FILE "def "``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .data import Data


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a continuation of each prompt."""
    for prompt in inputs:
        yield {"input": prompt, "text": generate(model, data.train.context, prompt)}


def generate(model: nn.Module, context: int, prompt: str, length: int = 400, temperature: float = 0.8) -> str:
    """Return the prompt and ``length`` more bytes, sampled one by one: always the same ones."""
    generator = torch.Generator().manual_seed(0)
    # At least one token.
    tokens = list(prompt.encode() or b"\n")
    for _ in range(length):
        logits = model(torch.tensor([tokens[-context:]]))[0, -1]
        probabilities = torch.softmax(logits / temperature, dim=0)
        tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return bytes(tokens).decode(errors="replace")
