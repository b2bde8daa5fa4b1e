"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE, call, train
from sklearn.datasets import load_digits

from {{ cookiecutter.package_name }}.task.data import Images, load
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

# A training that is long enough to learn something, and what it has to reach.
SETTINGS: tuple[str, ...] = ()
SCORE, AT_LEAST = "val_accuracy", 0.97
SIZES = (1437, 360)
# Settings that are refused, and a part of the sentence that says so.
REFUSED = [
    (("--task.dataset", "mnist"), "one of ['digits', 'cifar10', 'folder', 'synthetic'], not mnist"),
    (("--task.width", "12"), "task.width must be a multiple of 8, not 12"),
    (("--task.image_size", "0"), "task.image_size must be at least 1, not 0"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    answer = call("train", *arguments, package=PACKAGE)
    assert (answer.code, sentence in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, *SETTINGS, package=PACKAGE)
    assert run.summary[SCORE] >= AT_LEAST
    assert run.summary["weights_difference"] == 0.0


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


def read(dataset: Images, index: int) -> tuple[bytes, int]:
    images, labels = dataset.__getitems__([index])
    return images.numpy().tobytes(), int(labels)


@pytest.mark.parametrize("dataset", ["cifar10", "folder"])
def test_torchvision_is_asked_for_where_it_is_missing(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = call("doctor", "--quiet", "--task.dataset", dataset, package=PACKAGE)
    expected = f"error: task.dataset {dataset} needs torchvision: pip install -e '.[vision]'\n"
    assert (answer.code, answer.errors) == (1, expected)
