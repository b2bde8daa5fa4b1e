"""The task: replace this file together with src/{{ cookiecutter.package_name }}/task/ and step.py."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import PROJECT, train
from matplotlib import image

from {{ cookiecutter.package_name }}.config import Config, OptimConfig
from {{ cookiecutter.package_name }}.runtime import UsageError
from {{ cookiecutter.package_name }}.task import load_task
from {{ cookiecutter.package_name }}.task.objective import create_optimizer, discriminator_loss, generator_loss
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"width": 0}, {"noise": 0}, {"discriminator_lr": 0.0}, {"beta2": 1.0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))} must be"):
        TaskConfig(**bad)


def test_only_adamw_is_supported() -> None:
    with pytest.raises(UsageError, match=r"optim.name sgd does not train this task"):
        create_optimizer(torch.nn.Linear(1, 1), replace(Config(), optim=OptimConfig(name="sgd")))


def test_noise_follows_from_the_seed_of_an_image() -> None:
    dataset = load_task(TaskConfig()).train
    images, noise = dataset.__getitems__([3, 8], torch.tensor([7, 9]))
    assert (images.shape, noise.shape) == ((2, 1, 8, 8), (2, 32))
    assert torch.equal(dataset.__getitems__([8], torch.tensor([9]))[1], noise[1:])
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize("name", ["discriminator", "generator"])
def test_a_network_learns_from_its_loss(name: str) -> None:
    torch.manual_seed(0)
    task = load_task(TaskConfig())
    model: Any = task.create_model()
    batch = task.train.__getitems__(list(range(64)), torch.arange(64))
    optimizer = torch.optim.SGD(model.get_submodule(name).parameters(), 0.1)
    loss = {"discriminator": discriminator_loss, "generator": generator_loss}[name]
    first = loss(model, batch)
    first.backward()
    optimizer.step()
    assert loss(model, batch) < first


def test_images_of_digits_are_generated(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--train.epochs=60")
    # Noise has a distance of 7, other real digits of 0.05.
    assert run.summary["best"]["val_frechet_distance"] <= 0.7
    files = sorted((run.path / "examples").iterdir())
    assert [file.name for file in files] == [f"{step:06}.png" for step in range(200, 1321, 200)]
    assert image.imread(files[-1]).shape[:2] == (100, 100)
