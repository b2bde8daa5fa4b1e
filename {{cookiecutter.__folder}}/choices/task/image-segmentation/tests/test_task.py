"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, call, train
from PIL import Image
from sklearn.datasets import load_digits

from {{ cookiecutter.package_name }}.config import Config, to_dict
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.objective import metrics
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

REFUSED = [
    (("--task.width", "12"), "task.width must be a multiple of 8, not 12"),
    (("--task.size", "26"), "task.size must be divisible by 4, not 26"),
    (("--task.digits", "5"), "task.size 24 has room for 4 digits, not 5"),
    (("--task.noise", "-1"), "task.noise must be at least 0, not -1.0"),
    (("--task.val_scenes", "0"), "task.val_scenes must be at least 1, not 0"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    answer = call("train", *arguments, package=PACKAGE)
    assert (answer.code, sentence in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file["task"] == to_dict(Config())["task"]


def test_the_scenes_are_the_same_each_time() -> None:
    data, again = load(TaskConfig()), load(TaskConfig())
    assert (len(data.train), len(data.val)) == (2048, 512)
    images, masks = data.train.__getitems__([5, 2047])
    assert (images.shape, images.dtype) == ((2, 1, 24, 24), torch.float32)
    assert (masks.shape, masks.dtype) == ((2, 24, 24), torch.int64)
    assert torch.equal(images, again.train.images[[5, 2047]])
    assert torch.equal(masks, again.train.masks[[5, 2047]])


def test_both_sets_hold_different_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # A thousand digits that are all ink, each with a label of its own, which is then found in the masks.
    table = np.column_stack([np.full((1000, 64), 16), np.arange(1000)]).astype(np.float32)
    monkeypatch.setattr("{{ cookiecutter.package_name }}.task.data._digits", lambda: table)
    data = load(TaskConfig())
    train, val = (set(part.masks.flatten().tolist()) for part in (data.train, data.val))
    assert train & val == {0}
    assert train | val == set(range(1001))
    # None covers another.
    assert (data.train.masks > 0).sum() == 2048 * 4 * 64


def test_a_mask_shows_the_ink_of_a_digit_of_scikit_learn() -> None:
    data = load(TaskConfig(size=12, digits=1, noise=0))
    digits = load_digits()
    known = {((image >= 8) * (label + 1)).tobytes() for image, label in zip(digits.images, digits.target, strict=True)}
    for image, mask in zip(data.val.images[:, 0], data.val.masks, strict=True):
        assert image[mask > 0].mean() > image[mask == 0].mean() + 0.1
        corners = [(top, left) for top in range(5) for left in range(5)]
        assert any(mask[top : top + 8, left : left + 8].numpy().tobytes() in known for top, left in corners)


def test_the_classes_weigh_the_same_over_all_images() -> None:
    scores = torch.eye(11).reshape(1, 11, 1, 11).repeat(2, 1, 1, 1)
    masks = torch.arange(11).repeat(2, 1, 1)
    # One of two pixels of class 10 is taken for background.
    scores[1, :, 0, 10] = scores[1, :, 0, 0]
    measured = {}
    for name, metric in metrics(torch.device("cpu"), load(TaskConfig(size=12, digits=1))).items():
        metric.reset()
        for batch in zip(scores[:, None], masks[:, None], strict=True):
            metric.update(batch)
        measured[name] = float(metric.compute())
    assert measured == pytest.approx({"miou": (9 + 1 / 2 + 2 / 3) / 11, "accuracy": 21 / 22})


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, package=PACKAGE)
    # Background everywhere gives 0.08.
    assert run.summary["val_miou"] >= 0.7
    assert run.summary["weights_difference"] == 0.0
    # A scene of another size than those that it learned from, which the model cannot halve twice, as a file.
    scenes = load(TaskConfig(size=48, digits=9, val_scenes=1)).val
    file = tmp_path / "scene.png"
    Image.fromarray((scenes.images[0, 0, :45].clamp(0, 1) * 255).byte().numpy()).save(file)
    answer = call("predict", "--checkpoint", str(run.path), str(file), package=PACKAGE)
    told = json.loads(answer.output)
    mask = np.asarray(Image.open(told["mask"]))
    assert told["mask"] == f"{file}-mask.png" and mask.shape == (45, 48)
    assert sum(told["pixels"].values()) == mask.size
    assert (mask == scenes.masks[0, :45].numpy()).mean() > 0.85
