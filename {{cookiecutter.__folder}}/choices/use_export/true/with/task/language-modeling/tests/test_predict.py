"""The predictions of task/predict.py."""

from __future__ import annotations

import json

from conftest import Run, call


def test_prompts_are_continued_in_the_same_way_each_time(alone: Run) -> None:
    command = ("predict", "--checkpoint", str(alone.path), "def ", "")
    answer = call(*command)
    texts = [json.loads(line)["text"] for line in answer.output.splitlines()]
    assert texts[0].startswith("def ") and len(texts[0]) > 200 and len(texts[1]) > 200
    assert call(*command) == answer
