"""The predictions of task/predict.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from conftest import Run, call
from PIL import Image
from sklearn.datasets import load_digits


def test_image_files_of_digits_are_recognized(alone: Run, tmp_path: Path) -> None:
    digits = load_digits()
    files = []
    for number in range(20):
        pixels = (digits.images[number] * 15.9375).astype(np.uint8)
        files.append(str(tmp_path / f"{number}-{digits.target[number]}.png"))
        Image.fromarray(pixels).resize((80, 80), Image.Resampling.BICUBIC).save(files[-1])
    answer = call("predict", "--checkpoint", str(alone.path), *files)
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["input"] for line in lines] == files
    assert sum(line["class"] == file[-5] for line, file in zip(lines, files, strict=True)) >= 15


def test_a_file_that_is_no_image_is_named(alone: Run) -> None:
    answer = call("predict", "--checkpoint", str(alone.path), __file__)
    assert (answer.code, answer.errors.count(f"{__file__} cannot be read as an image")) == (2, 1), answer.errors
