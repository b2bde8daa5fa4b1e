"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import PACKAGE, PROJECT, call, train
from sklearn.datasets import load_diabetes

from {{ cookiecutter.package_name }}.config import Config, to_dict
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

REFUSED = [
    (("--task.width", "0"), "task.width must be at least 1, not 0"),
    (("--task.dropout", "1"), "task.dropout must be at least 0 and less than 1, not 1.0"),
    (("--task.table", "nowhere.csv"), "there is no file nowhere.csv: choose another task.table"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    answer = call("train", *arguments, package=PACKAGE)
    assert (answer.code != 0, sentence in answer.errors, answer.errors.count("\n")) == (True, True, 1), answer.errors


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file["task"] == to_dict(Config())["task"]


def test_the_rows_are_those_of_scikit_learn_without_overlap() -> None:
    data = load(TaskConfig())
    assert (len(data.train), len(data.val)) == (354, 88)
    rows = np.concatenate([data.train.table.numpy(), data.val.table.numpy()])
    diabetes = load_diabetes(scaled=False)
    whole = np.column_stack([diabetes.data, diabetes.target]).astype(np.float32)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, whole.tolist()))


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, package=PACKAGE)
    # The mean of the targets is 65.0 off on average, a linear model 46.5, with an R squared of 0.48.
    assert run.summary["best"]["val_mae"] <= 48
    assert run.summary["val_r2"] >= 0.44
    assert run.summary["weights_difference"] == 0.0


def test_a_table_of_your_own_is_learned(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    table = tmp_path / "table.csv"
    np.savetxt(table, np.column_stack([rows, 100 + rows[:, 0] - 2 * rows[:, 1]]), delimiter=",", header="a,b,c,d")
    settings = ("--task.table", str(table), "--task.dropout", "0", "--optim.lr", "0.01")
    run = train(tmp_path / "run", 1, *settings, package=PACKAGE)
    assert run.summary["val_r2"] >= 0.98
    new = tmp_path / "new.csv"
    new.write_text("a,b,c\n0,0,0\n1,-1,0\n")
    ask = ("predict", "--checkpoint", str(run.checkpoint()))
    lines = [json.loads(line) for line in call(*ask, str(new), package=PACKAGE).output.splitlines()]
    assert [line["row"] for line in lines] == [1, 2]
    assert [line["prediction"] for line in lines] == pytest.approx([100, 103], abs=0.5)
    refused = call(*ask, str(table), package=PACKAGE)
    assert (refused.code, refused.errors.count("has 4 columns, the model learned from 3")) == (2, 1), refused.errors
    table.write_text("a,b\n1,2\n3,\n")
    refused = call("train", "--train.run_dir", str(tmp_path / "other"), *settings, package=PACKAGE)
    assert (refused.code, "give it numbers alone" in refused.errors) == (2, True), refused.errors
