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

from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.model import create_model
from {{ cookiecutter.package_name }}.task.objective import metrics
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"width": 12}, {"size": 26}, {"noise": -1}, {"val_scenes": 0}, {"size": 12}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))} "):
        TaskConfig(**bad)


def test_both_sets_have_different_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # A thousand digits that are all ink, each with a label of its own.
    table = np.column_stack([np.full((1000, 64), 16), np.arange(1000)]).astype(np.float32)
    monkeypatch.setattr("{{ cookiecutter.package_name }}.task.data._digits", lambda: table)
    data = load(TaskConfig())
    train, val = (set(part.masks.flatten().tolist()) for part in (data.train, data.val))
    assert train & val == {0}
    assert train | val == set(range(1001))
    # None covers another.
    assert (data.train.masks > 0).sum() == 2048 * 4 * 64


def test_a_mask_shows_the_ink_of_a_digit() -> None:
    data = load(TaskConfig(size=12, digits=1, noise=0))
    digits = load_digits()
    known = {((image >= 8) * (label + 1)).tobytes() for image, label in zip(digits.images, digits.target, strict=True)}
    for image, mask in zip(data.val.images[:, 0], data.val.masks, strict=True):
        assert image[mask > 0].mean() > image[mask == 0].mean() + 0.1
        corners = [(top, left) for top in range(5) for left in range(5)]
        assert any(mask[top : top + 8, left : left + 8].numpy().tobytes() in known for top, left in corners)


def test_the_model_returns_a_logit_for_each_class_and_pixel() -> None:
    settings = TaskConfig(width=8, size=12, digits=1)
    data = load(settings)
    images, masks = data.train.__getitems__([0, 5, 2047])
    assert (images.shape, masks.shape) == ((3, 1, 12, 12), (3, 12, 12))
    assert create_model(settings, data)(images).shape == (3, 11, 12, 12)


def test_metrics_are_over_the_pixels_of_all_images() -> None:
    logits = torch.eye(11).reshape(1, 11, 1, 11).repeat(2, 1, 1, 1)
    # One of two pixels of class 10 is predicted as background.
    logits[1, :, 0, 10] = logits[1, :, 0, 0]
    values = {}
    for name, metric in metrics(torch.device("cpu"), load(TaskConfig(size=12, digits=1))).items():
        for image in logits:
            metric.update((image[None], torch.arange(11)[None, None]))
        values[name] = float(metric.compute())
    assert values == pytest.approx({"miou": (9 + 1 / 2 + 2 / 3) / 11, "accuracy": 21 / 22})


def test_the_task_is_learned(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--train.epochs=2")
    # Background everywhere gives 0.08.
    assert run.summary["val_miou"] >= 0.2
