"""The classes of new images: ``predict --checkpoint FILE image.png ...``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..runtime import UsageError
from .data import Data


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the most probable class of each image file, scaled and cropped to the size of the training images.

    Raises:
        UsageError: if a file is not an image.
    """
    channels, height, width = data.shape
    for name in inputs:
        try:
            image = Image.open(name).convert("L" if channels == 1 else "RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"{name} cannot be read as an image ({error}). Choose another file.") from None
        scale = max(height / image.height, width / image.width)
        size = (round(image.width * scale), round(image.height * scale))
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + width, top + height)))
        values = torch.from_numpy(pixels.astype(np.float32)) / 127.5 - 1
        logits = model(values.reshape(1, height, width, channels).permute(0, 3, 1, 2))
        probabilities = torch.softmax(logits[0], dim=0)
        best = int(probabilities.argmax())
        yield {"input": name, "class": data.classes[best], "probability": round(float(probabilities[best]), 4)}
