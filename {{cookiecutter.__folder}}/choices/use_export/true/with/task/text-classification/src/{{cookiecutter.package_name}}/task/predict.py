"""The classes of new texts: ``predict --checkpoint FILE "def run(loop):" ...``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .data import Data, Texts, collate


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the most probable class of each text."""
    texts = Texts([(text, 0) for text in inputs], data.train.vocabulary, data.train.length)
    for number, text in enumerate(inputs):
        tokens, _ = collate([texts[number]])
        probabilities = torch.softmax(model(tokens)[0], dim=0)
        best = int(probabilities.argmax())
        yield {"input": text, "class": data.classes[best], "probability": round(float(probabilities[best]), 4)}
