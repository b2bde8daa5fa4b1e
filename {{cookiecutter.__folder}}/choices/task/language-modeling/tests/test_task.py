"""The task: replace this file together with src/{{ cookiecutter.package_name }}/task/."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import PROJECT, train

from {{ cookiecutter.package_name }}.config import Config, OptimConfig
from {{ cookiecutter.package_name }}.runtime import UsageError
from {{ cookiecutter.package_name }}.task import objective
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.model import GPT
from {{ cookiecutter.package_name }}.task.settings import TaskConfig


def test_the_default_file_has_the_defaults() -> None:
    file = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    assert file["task"] == asdict(TaskConfig())


@pytest.mark.parametrize("bad", [{"heads": 3}, {"val_tokens": 10}, {"dropout": 1.0}, {"layers": 0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"task.{next(iter(bad))}"):
        TaskConfig(**bad)


def test_windows_are_consecutive_and_both_sets_have_different_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(200)))
    settings = TaskConfig(text=str(text), train_tokens=150, val_tokens=50, context=10)
    data = load(settings)
    assert (len(data.train), len(data.val)) == (14, 4)
    tokens, following = data.train.__getitems__([0, 13])
    assert tokens.tolist() == [list(range(50, 60)), list(range(180, 190))]
    assert following.tolist() == [list(range(51, 61)), list(range(181, 191))]
    with pytest.raises(UsageError, match=r"has 200 bytes, not 201\. Lower task.train_tokens"):
        load(replace(settings, train_tokens=151))
    with pytest.raises(UsageError, match="is not a file"):
        load(TaskConfig(text=str(tmp_path / "nowhere.txt")))


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_only_matrices_decay(name: Any, kind: type[torch.optim.Optimizer]) -> None:
    config = replace(Config(), optim=OptimConfig(name=name, weight_decay=0.5))
    optimizer = objective.create_optimizer(GPT(config.task), config)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_the_perplexity_of_a_diverged_model_is_inf() -> None:
    assert objective.perplexity(0.0) == 1.0 and objective.perplexity(1e4) == math.inf


def test_no_token_depends_on_later_ones() -> None:
    torch.manual_seed(0)
    model = GPT(TaskConfig(context=8)).eval()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 99
    assert model(tokens).shape == (1, 8, 256)
    assert torch.equal(model(tokens)[0, :5], model(changed)[0, :5])
    assert not torch.equal(model(tokens)[0, 5:], model(changed)[0, 5:])


def test_the_task_is_learned(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--task.root", str(tmp_path), "--task.train_tokens=300000")
    # The frequencies of the bytes alone give 25.
    assert run.summary["val_perplexity"] <= 15
