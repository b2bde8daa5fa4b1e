"""The predictions of task/predict.py."""

from __future__ import annotations

import asyncio
import inspect
import json

from conftest import Run, call

from {{ cookiecutter.package_name }}.task.data import PACKAGES


def test_each_text_gets_a_class(alone: Run) -> None:
    texts = [inspect.getsource(asyncio.run), ""]
    answer = call("predict", "--checkpoint", str(alone.path), *texts)
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["input"] for line in lines] == texts
    assert all(line["class"] in PACKAGES and 1 / len(PACKAGES) <= line["probability"] <= 1 for line in lines)
