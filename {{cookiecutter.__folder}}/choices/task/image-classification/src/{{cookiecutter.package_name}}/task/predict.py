"""The classes of new images: ``predict --checkpoint FILE image.png ...``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from .data import Data, naming


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the most probable class of each image file, which is cut and scaled as the training images were.

    Raises:
        UsageError: if a file is not an image.
    """
    channels, height, width = data.shape
    for name in inputs:
        with naming(name, fix="choose another file"):
            image = Image.open(name).convert("L" if channels == 1 else "RGB")
        scale = max(height / image.height, width / image.width)
        size = (round(image.width * scale), round(image.height * scale))
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + width, top + height)))
        # From black to white, the model has seen -span to span.
        values = (torch.from_numpy(pixels.astype(np.float32)) / 127.5 - 1) * data.span
        scores = model(values.reshape(1, height, width, channels).permute(0, 3, 1, 2))
        probabilities = torch.softmax(scores[0], dim=0)
        best = int(probabilities.argmax())
        yield {"input": name, "class": data.classes[best], "probability": round(float(probabilities[best]), 4)}
