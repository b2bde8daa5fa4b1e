"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

from pathlib import Path

import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, call, train
from matplotlib import image

from {{ cookiecutter.package_name }}.config import Config, to_dict
from {{ cookiecutter.package_name }}.task import objective
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.model import create_model

REFUSED = [
    (("--task.width", "0"), "task.width must be at least 1, not 0"),
    (("--task.discriminator_lr", "0"), "task.discriminator_lr must be positive, not 0.0"),
    (("--optim.name", "sgd"), "optim.name must be adamw"),
    (("--optim.accumulation_steps", "2"), "set optim.accumulation_steps to 1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    answer = call("train", "--train.run_dir", str(tmp_path), *arguments, package=PACKAGE)
    assert (answer.code, answer.errors.count(sentence)) == (2, 1), answer.errors


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file["task"] == to_dict(Config())["task"]


def test_each_loss_updates_its_own_network_after_the_one_before() -> None:
    config = Config()
    data = load(config.task)
    model = create_model(config.task, data)
    optimizer = objective.create_optimizer(model, config)
    assert [(group["name"], group["lr"]) for group in optimizer.param_groups] == [
        ("generator", config.optim.lr),
        ("discriminator", config.task.discriminator_lr),
    ]
    batch = data.train.__getitems__(list(range(8)), torch.arange(8))
    turns = objective.losses(model, batch)
    names = []
    for name, loss in turns:
        names.append(name)
        before = float(loss)
        optimizer.zero_grad()
        parameters = list(model.get_submodule(name).parameters())
        loss.backward(inputs=parameters)
        optimizer.step()
        if name == "discriminator":
            assert float(next(objective.losses(model, batch))[1]) < before
    assert names == ["discriminator", "generator"]


def test_two_processes_learn_to_draw_digits(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, package=PACKAGE)
    # Noise is 7 off, other real digits 0.05.
    assert run.summary["best"]["val_frechet_distance"] <= 0.5
    assert run.summary["weights_difference"] == 0.0
    assert {"loss_discriminator", "loss_generator"} < run.steps[-1].keys()
    images = sorted((run.path / "examples").iterdir())
    assert len(images) == len(run.records)
    assert image.imread(images[-1]).shape[:2] == (100, 100)
