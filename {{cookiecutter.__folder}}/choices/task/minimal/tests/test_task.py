"""The task: replace this file together with src/{{ cookiecutter.package_name }}/task/."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from conftest import PROJECT, train

from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.width must be"):
        TaskConfig(width=0)


def test_the_task_is_learned(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1)
    assert run.summary["val_error"] <= 0.04
