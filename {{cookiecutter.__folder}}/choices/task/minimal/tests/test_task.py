"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

from pathlib import Path

import yaml
from conftest import PACKAGE, PROJECT, call, train

from {{ cookiecutter.package_name }}.config import Config, to_dict


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file["task"] == to_dict(Config())["task"]


def test_bad_settings_are_refused_in_one_sentence() -> None:
    answer = call("train", "--task.width", "0", package=PACKAGE)
    assert (answer.code, answer.errors) == (2, "error: task.width must be at least 1, not 0\n")


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, package=PACKAGE)
    assert run.summary["val_error"] <= 0.04
    assert run.summary["weights_difference"] == 0.0
