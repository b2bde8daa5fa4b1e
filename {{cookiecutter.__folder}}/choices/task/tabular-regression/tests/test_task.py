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
from sklearn.datasets import load_diabetes

from {{ cookiecutter.package_name }}.runtime import UsageError
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.model import create_model
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"width": 0}, {"dropout": 1.0}, {"val_part": 0.0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))} must be"):
        TaskConfig(**bad)


def test_the_rows_are_those_of_scikit_learn_without_overlap() -> None:
    data = load(TaskConfig())
    assert (len(data.train), len(data.val)) == (354, 88)
    rows = np.concatenate([data.train.table.numpy(), data.val.table.numpy()])
    diabetes = load_diabetes(scaled=False)
    whole = np.column_stack([diabetes.data, diabetes.target]).astype(np.float32)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, whole.tolist()))


def test_an_untrained_model_predicts_near_the_mean_in_the_unit_of_the_target() -> None:
    torch.manual_seed(0)
    data = load(TaskConfig())
    inputs, targets = data.train.__getitems__(list(range(354)))
    predictions = create_model(TaskConfig(), data).eval()(inputs)
    assert predictions.shape == targets.shape
    assert abs(predictions.mean() - targets.mean()) < 0.5 * targets.std()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a,b\n1,2\n3,\n", "cannot be read"),
        ("a,b\n1,nan\n2,3\n", "has no rows, or NaN or inf"),
        ("a,b\n", "has no rows"),
        ("a\n1\n2\n3\n", "task.table has 3 rows and 1 columns"),
        ("a,b\n1,2\n", "task.table has 1 rows and 2 columns"),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(UsageError, match=reason):
        load(TaskConfig(table=str(tmp_path / "table.csv")))


def test_a_table_of_your_own_is_learned(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    table = tmp_path / "table.csv"
    np.savetxt(table, np.column_stack([rows, 100 + rows[:, 0] - 2 * rows[:, 1]]), delimiter=",", header="a,b,c,d")
    run = train(tmp_path / "run", 1, "--task.table", str(table))
    assert run.summary["val_r2"] >= 0.98
