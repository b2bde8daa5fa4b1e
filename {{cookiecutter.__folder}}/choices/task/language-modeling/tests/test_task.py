"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, call, train

from {{ cookiecutter.package_name }}.config import Config, OptimConfig, to_dict
from {{ cookiecutter.package_name }}.task import objective
from {{ cookiecutter.package_name }}.task.data import load
from {{ cookiecutter.package_name }}.task.model import GPT
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

REFUSED = [
    (("--task.heads", "3"), "task.width 64 is not divisible by task.heads 3"),
    (("--task.val_tokens", "10"), "must be more than task.context 64"),
    (("--task.text", "nowhere.txt"), "there is no file nowhere.txt: choose another task.text"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_settings_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    answer = call("train", *arguments, package=PACKAGE)
    assert (answer.code != 0, sentence in answer.errors, answer.errors.count("\n")) == (True, True, 1), answer.errors


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert file["task"] == to_dict(Config())["task"]


def test_windows_follow_each_other_and_both_sets_hold_different_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(200)))
    settings = TaskConfig(text=str(text), root=str(tmp_path), train_tokens=150, val_tokens=50, context=10)
    data = load(settings)
    assert (len(data.train), len(data.val)) == (14, 4)
    tokens, following = data.train.__getitems__([0, 13])
    assert tokens.tolist() == [list(range(50, 60)), list(range(180, 190))]
    assert following.tolist() == [list(range(51, 61)), list(range(181, 191))]
    # What is read is the text as it is now.
    text.write_bytes(bytes(range(1, 201)))
    assert load(settings).train.__getitems__([0])[0].tolist() == [list(range(51, 61))]


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(bytes(100))
    settings = ("--task.text", str(tmp_path / "text.txt"), "--task.root", str(tmp_path))
    refused = call("train", "--train.run_dir", str(tmp_path / "run"), *settings, package=PACKAGE)
    assert (refused.code, refused.errors.count("lower task.train_tokens")) == (1, 1), refused.errors


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_the_optimizer_is_the_one_asked_for_and_matrices_decay(name: str, kind: type[torch.optim.Optimizer]) -> None:
    config = replace(Config(), optim=OptimConfig(name=name, weight_decay=0.5))  # type: ignore[arg-type]
    optimizer = objective.create_optimizer(GPT(config.task), config)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_a_model_that_has_diverged_has_a_perplexity_all_the_same() -> None:
    assert objective.perplexity(0.0) == 1.0 and objective.perplexity(1e4) == math.inf


def test_no_token_sees_those_after_it() -> None:
    torch.manual_seed(0)
    model = GPT(TaskConfig(context=8)).eval()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 99
    assert torch.equal(model(tokens)[0, :5], model(changed)[0, :5])
    assert not torch.equal(model(tokens)[0, 5:], model(changed)[0, 5:])


def test_two_processes_learn_to_write(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, "--task.root", str(tmp_path), package=PACKAGE)
    # Knowing only how often each byte comes leaves 25.
    assert run.summary["val_perplexity"] <= 10
    assert run.summary["weights_difference"] == 0.0
    ask = ("predict", "--checkpoint", str(run.path), "def ", "class ")
    answer = call(*ask, package=PACKAGE)
    texts = [json.loads(line)["text"] for line in answer.output.splitlines()]
    # What it writes looks like source code: lines of words that Python knows.
    for beginning, text in zip(("def ", "class "), texts, strict=True):
        written = text.removeprefix(beginning)
        assert len(written) > 300 and sum(map(str.isascii, written)) > 0.9 * len(written), text
        assert {"self", "if", "def", "return", "in", "the", "import"} & set(re.findall(r"\w+", written)), text
    assert call(*ask, package=PACKAGE) == answer
