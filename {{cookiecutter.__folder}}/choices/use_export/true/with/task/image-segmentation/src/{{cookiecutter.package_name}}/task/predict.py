"""The masks of new images: ``predict --checkpoint FILE image.png ...``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..runtime import UsageError
from .data import Data


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Write the mask of each image to NAME-mask.png, in the size of the image; yield its number of pixels by class.

    Raises:
        UsageError: if a file is not an image, or its mask cannot be written.
    """
    for name in inputs:
        try:
            pixels = np.asarray(Image.open(name).convert("L"), np.float32) / 255
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"{name} cannot be read as an image ({error}). Choose another file.") from None
        height, width = pixels.shape
        # The model halves both sides twice.
        padded = np.pad(pixels, ((0, -height % 4), (0, -width % 4)), mode="edge")
        mask = model(torch.from_numpy(padded[None, None])).argmax(dim=1)[0, :height, :width]
        file = Path(f"{name}-mask.png")
        try:
            Image.fromarray(mask.numpy().astype(np.uint8)).save(file)
        except OSError as error:
            raise UsageError(
                f"{file} cannot be written ({error.strerror}). Copy the image to another folder.", 1
            ) from None
        counts = {data.classes[number]: int((mask == number).sum()) for number in mask.unique().tolist()}
        yield {"input": name, "mask": str(file), "pixels": counts}
