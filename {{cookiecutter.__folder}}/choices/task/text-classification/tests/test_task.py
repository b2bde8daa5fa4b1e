"""The task: replace this file together with src/{{ cookiecutter.package_name }}/task/."""

from __future__ import annotations

import asyncio
import email.message
import inspect
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import PROJECT, train

from {{ cookiecutter.package_name }}.runtime import UsageError
from {{ cookiecutter.package_name }}.task.data import PACKAGES, Texts, collate, load
from {{ cookiecutter.package_name }}.task.model import create_model
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"heads": 3}, {"vocabulary": 1}, {"dropout": 1.0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))}"):
        TaskConfig(**bad)


def test_the_functions_of_python_are_split_without_overlap() -> None:
    data = load(TaskConfig())
    train, val = dict(data.train.samples), dict(data.val.samples)
    assert len(train | val) == len(data.train) + len(data.val) > 4000
    assert {*train.values()} == {*val.values()} == {*range(len(PACKAGES))}
    # The module of the second one has form feeds.
    for function, label in ((asyncio.run, "asyncio"), (email.message.Message.as_string, "email")):
        text = textwrap.dedent(inspect.getsource(function)).rstrip()
        assert data.classes[(train | val)[text]] == label


def test_words_have_the_same_tokens_in_every_process() -> None:
    texts = Texts([("Read_lines(read)", 0), ("_", 1)], vocabulary=8192, length=5)
    assert texts[0][0].tolist() == [1096, 1207, 1388, 1096, 7561]
    assert texts[1][0].tolist() == [1]


def test_the_logits_of_a_text_do_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    data = load(TaskConfig())
    model = create_model(TaskConfig(layers=2), data).eval()
    samples = [data.train[index] for index in range(64)]
    tokens, _ = collate(samples)
    together = model(tokens)
    assert together.shape == (64, len(PACKAGES)) and (tokens == 0).any()
    alone = torch.cat([model(collate([sample])[0]) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    # Without gradients, torch may use another kernel.
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), together, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text,label\na\n", "cannot be read"),
        ("a,b\nc,d\n", "does not start with a line text,label"),
        ("text,label\nwords,a\nother,b\nwords,b\n", "has two labels, a and b, for 'words'"),
    ],
)
def test_what_is_not_a_table_of_texts_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(UsageError, match=reason):
        load(TaskConfig(table=str(tmp_path / "table.csv")))


def test_the_task_is_learned(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--train.epochs=2")
    # The most frequent class is right for 22 % of the texts.
    assert run.summary["val_accuracy"] >= 0.6
