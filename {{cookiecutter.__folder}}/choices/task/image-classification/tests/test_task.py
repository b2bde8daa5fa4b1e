"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, call, train
from PIL import Image
from sklearn.datasets import load_digits

from {{ cookiecutter.package_name }}.config import Config, to_dict
from {{ cookiecutter.package_name }}.errors import UsageError
from {{ cookiecutter.package_name }}.task.data import changed, load, naming
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

# A training that is long enough to learn something, and what it has to reach.
SETTINGS: tuple[str, ...] = ()
SCORE, AT_LEAST = "val_accuracy", 0.97
SIZES = (1437, 360)
# Settings that are refused, and a part of the sentence that says so.
REFUSED = [
    (("--task.dataset", "mnist"), "task.dataset must be one of digits, cifar10, folder, synthetic, not mnist"),
    (("--task.width", "12"), "task.width must be a multiple of 8, not 12"),
    (("--task.image_size", "0"), "task.image_size must be at least 1, not 0"),
]


def test_the_default_file_holds_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file == to_dict(Config())


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    answer = call("train", *arguments, package=PACKAGE)
    assert (answer.code, sentence in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, *SETTINGS, package=PACKAGE)
    assert run.summary[SCORE] >= AT_LEAST
    assert run.summary["weights_difference"] == 0.0
    # Files of the digits that it was trained on, drawn larger.
    digits = load_digits()
    for number in range(20):
        pixels = (digits.images[number] * 15.9375).astype(np.uint8)
        image = Image.fromarray(pixels).resize((80, 80), Image.Resampling.BICUBIC)
        image.save(tmp_path / f"{number:02}-{digits.target[number]}.png")
    files = [str(file) for file in sorted(tmp_path.glob("*.png"))]
    answer = call("predict", "--checkpoint", str(run.checkpoint()), *files, package=PACKAGE)
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["input"] for line in lines] == files
    assert sum(line["class"] == file[-5] for line, file in zip(lines, files, strict=True)) >= 18
    refused = call("predict", "--checkpoint", str(run.checkpoint()), __file__, package=PACKAGE)
    assert (refused.code, refused.errors.count("is not an image")) == (2, 1), refused.errors


def test_the_data_has_the_size_that_it_should_have() -> None:
    data = load(TaskConfig())
    assert (len(data.train), len(data.val)) == SIZES


def test_the_digits_of_scikit_learn_are_cut_without_overlap() -> None:
    data = load(TaskConfig())
    train, val = ({read(part, index) for index in range(len(part))} for part in (data.train, data.val))
    assert not train & val
    digits = load_digits()
    pairs = zip(digits.images.astype(np.float32), digits.target, strict=True)
    assert train | val == {((image / 8 - 1).tobytes(), int(label)) for image, label in pairs}


def read(dataset: Any, index: int) -> tuple[bytes, int]:
    images, labels = dataset.__getitems__([index], torch.zeros(1, dtype=torch.int64))
    return images.numpy().tobytes(), int(labels)


def test_an_image_is_moved_and_mirrored_as_its_seed_says() -> None:
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    seeds = torch.arange(18)
    moved = changed(image.expand(18, 1, 8, 8), seeds, mirror=True)
    assert len({one.numpy().tobytes() for one in moved}) == 18
    # Seed 4 is the middle of three rows and three columns, seed 13 the same mirrored.
    assert torch.equal(moved[4], image[0])
    assert torch.equal(moved[13], image[0].flip(2))
    assert torch.equal(moved[0, 0, 1:, 1:], image[0, 0, :-1, :-1])


def test_the_resnet_learns_augmented_digits(tmp_path: Path) -> None:
    settings = ("--task.model", "resnet", "--task.augment", "shift", "--task.width", "16", "--train.epochs", "5")
    run = train(tmp_path / "run", 1, *settings, package=PACKAGE)
    assert run.summary["val_accuracy"] >= 0.97
    assert "BatchNorm2d normalizes over 64 samples at a time" in run.log


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.png"
    Image.new("RGB", (40, 40)).save(whole)
    content = whole.read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:60])
    (tmp_path / "empty.png").touch()
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "pipe.png")
    reasons = {}
    for file in sorted(tmp_path.iterdir()):
        try:
            with naming(str(file)):
                Image.open(file).convert("RGB")
        except UsageError as refused:
            told = re.fullmatch(r".*/(\w+).png is not an image that can be read \((.*)\): fix it.*", str(refused))
            assert told, refused
            reasons[told[1]] = told[2]
    assert reasons == {
        "cut": "image file is truncated",
        "dangling": "it is gone, or no file",
        "empty": "of no known kind",
        "pipe": "it is gone, or no file",
    }


@pytest.mark.parametrize("dataset", ["cifar10", "folder"])
def test_torchvision_is_asked_for_where_it_is_missing(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = call("doctor", "--quiet", "--task.dataset", dataset, package=PACKAGE)
    expected = f"error: task.dataset {dataset} needs torchvision: pip install -e '.[vision]'\n"
    assert (answer.code, answer.errors) == (1, expected)
