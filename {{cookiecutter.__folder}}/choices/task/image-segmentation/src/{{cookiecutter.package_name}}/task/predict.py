"""The masks of new images: ``predict --checkpoint FILE image.png ...``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..errors import UsageError
from .data import Data


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Write the mask of each image file to NAME-mask.png, whose pixels are numbers of classes; yield how many each has.

    Raises:
        UsageError: if a file is not an image, or is less than 4 pixels wide or high.
    """
    for name in inputs:
        try:
            pixels = np.asarray(Image.open(name).convert("L"), np.float32) / 255
        except OSError as error:
            raise UsageError(f"{name} is not an image that can be read ({error}): choose another file") from None
        height, width = (side // 4 * 4 for side in pixels.shape)
        if not height * width:
            raise UsageError(
                f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels: choose an image of at least 4 x 4"
            )
        mask = model(torch.from_numpy(pixels[None, None, :height, :width])).argmax(dim=1)[0]
        file = Path(name).with_name(f"{Path(name).stem}-mask.png")
        Image.fromarray(mask.numpy().astype(np.uint8)).save(file)
        counts = {data.classes[number]: int((mask == number).sum()) for number in mask.unique().tolist()}
        yield {"input": name, "mask": str(file), "pixels": counts}
