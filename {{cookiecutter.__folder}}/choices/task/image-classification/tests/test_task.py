"""The task: replace this file together with src/{{ cookiecutter.package_name }}/task/."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import PROJECT, train
from sklearn.datasets import load_digits

from {{ cookiecutter.package_name }}.task.data import TensorImages, augmented, load
from {{ cookiecutter.package_name }}.task.model import create_model
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"width": 12}, {"image_size": 0}, {"synthetic_size": 0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))} must be"):
        TaskConfig(**bad)


def test_the_digits_are_split_without_overlap() -> None:
    data = load(TaskConfig())
    assert (len(data.train), len(data.val)) == (1437, 360)
    train, val = ({read(part, index) for index in range(len(part))} for part in (data.train, data.val))
    assert not train & val
    digits = load_digits()
    pairs = zip(digits.images.astype(np.float32), digits.target, strict=True)
    assert train | val == {((image / 8 - 1).tobytes(), int(label)) for image, label in pairs}


def read(dataset: TensorImages, index: int) -> tuple[bytes, int]:
    """Return a sample that can be compared."""
    images, labels = dataset.__getitems__([index], torch.zeros(1, dtype=torch.int64))
    return images.numpy().tobytes(), int(labels)


def test_the_augmentation_of_an_image_follows_from_its_seed() -> None:
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    changed = augmented(image.expand(18, 1, 8, 8), torch.arange(18), mirror=True)
    assert len({one.numpy().tobytes() for one in changed}) == 18
    # Seed 4 is the middle of three rows and three columns, and seed 13 mirrors it.
    assert torch.equal(changed[4], image[0])
    assert torch.equal(changed[13], image[0].flip(2))
    assert torch.equal(changed[0, 0, 1:, 1:], image[0, 0, :-1, :-1])


@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_a_model_returns_one_logit_for_each_class(model: Any) -> None:
    settings = TaskConfig(dataset="synthetic", synthetic_size=16, image_size=20, model=model, width=8)
    data = load(settings)
    images, _ = data.train.__getitems__([0, 1, 2], torch.zeros(3, dtype=torch.int64))
    assert images.shape == (3, *data.shape)
    assert create_model(settings, data)(images).shape == (3, 10)


def test_two_processes_learn_augmented_digits_as_one(tmp_path: Path) -> None:
    settings = ["--task.augment=shift", "--train.epochs=3"]
    one, two = (train(tmp_path / str(processes), processes, *settings) for processes in (1, 2))
    assert one.summary["val_accuracy"] >= 0.93
    assert two.summary["val_loss"] == pytest.approx(one.summary["val_loss"], rel=1e-3)
