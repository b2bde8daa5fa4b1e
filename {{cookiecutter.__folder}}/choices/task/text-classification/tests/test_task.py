"""What belongs to your task alone: replace it together with src/{{ cookiecutter.package_name }}/task/."""

import asyncio
import csv
import email.message
import inspect
import json
import random
import textwrap
import urllib.parse
from pathlib import Path

import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, call, train
from ignite.engine import Engine

from {{ cookiecutter.package_name }}.config import Config, to_dict
from {{ cookiecutter.package_name }}.task.data import PACKAGES, Texts, collate, load
from {{ cookiecutter.package_name }}.task.model import create_model
from {{ cookiecutter.package_name }}.task.objective import metrics
from {{ cookiecutter.package_name }}.task.settings import TaskConfig

REFUSED = [
    (("--task.heads", "3"), "task.width 64 is not divisible by task.heads 3"),
    (("--task.vocabulary", "1"), "task.vocabulary must be at least 2, not 1"),
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


def test_the_functions_of_python_are_cut_without_overlap() -> None:
    data = load(TaskConfig())
    train, val = dict(data.train.samples), dict(data.val.samples)
    both = train | val
    assert len(both) == len(data.train) + len(data.val) > 4000
    assert len(data.val) == round(len(both) / 5)
    assert data.classes == PACKAGES
    assert {*train.values()} == {*val.values()} == {*range(len(PACKAGES))}
    # The module of the second one has form feeds.
    for function in (asyncio.run, email.message.Message.as_string, urllib.parse.urljoin):
        text = textwrap.dedent(inspect.getsource(function)).rstrip()
        assert data.classes[both[text]] == function.__module__.partition(".")[0]


def test_words_have_the_same_numbers_in_every_process() -> None:
    texts = Texts([("Read_lines(read)", 0), ("_", 1)], vocabulary=8192, length=5)
    assert [(tokens.tolist(), label) for tokens, label in (texts[0], texts[1])] == [
        ([1096, 1207, 1388, 1096, 7561], 0),
        ([1], 1),
    ]


def test_what_is_answered_for_a_text_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    data = load(TaskConfig())
    model = create_model(TaskConfig(layers=2), data).eval()
    samples = [data.train[index] for index in range(64)]
    tokens, labels = collate(samples)
    lengths = [len(text) for text, _ in samples]
    assert tokens.shape == (64, max(lengths)) and min(lengths) < max(lengths)
    assert labels.tolist() == [label for _, label in samples]
    together = model(tokens)
    alone = torch.cat([model(collate([sample])[0]) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    # As in an evaluation, where torch may take another way.
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), together, rtol=0, atol=1e-5)


def test_macro_f1_is_the_mean_over_the_classes() -> None:
    scorer = Engine(lambda engine, pair: pair)
    for name, metric in metrics(torch.device("cpu")).items():
        metric.attach(scorer, name)
    said, labels = torch.tensor([0, 0, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 2])
    pairs = [(torch.eye(3)[said[part]], labels[part]) for part in (slice(4), slice(4, 6))]
    # F1 is 2 * hits / (said + there): 6/8, 2/3, and 0 for the class that was never said.
    assert scorer.run(pairs).metrics == pytest.approx({"accuracy": 4 / 6, "macro_f1": (6 / 8 + 2 / 3) / 3})


def test_two_processes_learn_the_task(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, package=PACKAGE)
    # To say the most frequent class, always, is right for 22 % of the texts.
    assert run.summary["best"]["val_accuracy"] >= 0.8
    assert run.summary["val_macro_f1"] >= 0.75
    assert run.summary["weights_difference"] == 0.0
    texts = [inspect.getsource(function) for function in (asyncio.run, email.message.Message.as_string)]
    answer = call("predict", "--checkpoint", str(run.path), *texts, "", package=PACKAGE)
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["class"] for line in lines[:2]] == ["asyncio", "email"]
    assert len(lines) == 3


def test_a_table_of_your_own_is_learned(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [", ".join(draw.choices(["süß", *"abcdefghij"], k=6)) for _ in range(900)]
    table = tmp_path / "table.csv"
    with table.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("text", "label"), *((text, "süß" in text) for text in texts)])
    settings = ("--task.table", str(table), "--task.dropout", "0", "--optim.lr", "0.01")
    assert load(TaskConfig(table=str(table))).classes == ("False", "True")
    assert train(tmp_path / "run", 1, *settings, package=PACKAGE).summary["val_accuracy"] >= 0.95
    twice = "text,label\nwords,a\nother,b\nwords,b\n"
    for content, sentence in (
        ("text,label\na\n", "give it two columns"),
        ("a,b\nc,d\n", "does not begin with"),
        (twice, "has a text with two labels, a and b: keep one of 'words'"),
    ):
        table.write_text(content)
        refused = call("train", "--train.run_dir", str(tmp_path / "other"), *settings, package=PACKAGE)
        assert (refused.code, sentence in refused.errors) == (2, True), refused.errors
