"""The predictions of task/predict.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from conftest import Run, call
from PIL import Image

from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_a_mask_has_the_size_of_its_image(alone: Run, tmp_path: Path) -> None:
    # Of another size than in training, and not divisible by 4.
    scene = load(TaskConfig(size=48, digits=9, val_scenes=1)).val.images[0, 0, :45]
    file = tmp_path / "scene.png"
    Image.fromarray((scene.clamp(0, 1) * 255).byte().numpy()).save(file)
    answer = call("predict", "--checkpoint", str(alone.path), str(file))
    prediction = json.loads(answer.output)
    mask = np.asarray(Image.open(prediction["mask"]))
    assert prediction["mask"] == f"{file}-mask.png" and mask.shape == (45, 48)
    assert sum(prediction["pixels"].values()) == mask.size
    assert prediction["pixels"]["background"] == (mask == 0).sum()
