"""Export: the program and the weights of a trained model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import PACKAGE, Run, call
from torch import Tensor, nn

from {{ cookiecutter.package_name }}.config import Config
from {{ cookiecutter.package_name }}.packs.export.program import example_arguments, facts, write_program
from {{ cookiecutter.package_name }}.runtime import UsageError
from {{ cookiecutter.package_name }}.task import load_task


def test_the_program_computes_what_the_model_computes_for_other_batch_sizes(alone: Run, tmp_path: Path) -> None:
    answer = call("export", "--checkpoint", str(alone.path), "--folder", str(tmp_path))
    assert answer.code == 0, answer.errors
    assert json.loads(answer.output)["folder"] == str(tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    inputs = []
    for described in about["inputs"]:
        name, _, shape = described.removeprefix("torch.").partition(" ")
        sizes = [int(size) for size in shape.strip("(),").split(",")]
        inputs.append(torch.rand(3, *sizes[1:]).round().to(getattr(torch, name)))
    model = load_task(Config().task).create_model()
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    program: Any = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(*inputs), model.eval()(*inputs), rtol=1e-4, atol=1e-4)


class Branching(nn.Module):
    """Chooses by the values of a tensor, which a program cannot."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the absolute sum."""
        return inputs.sum() if inputs.sum() > 0 else -inputs.sum()


def test_a_model_that_cannot_be_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="data-dependent"):
        write_program(Branching(), ((torch.ones(4, 2),), {}), tmp_path / "model.pt2")
    with pytest.raises(TypeError, match="takes text, such as 'word'"):
        write_program(nn.Identity(), ((["word"],), {}), tmp_path / "model.pt2")
    samples = [torch.ones(2)] * 4
    task: Any = SimpleNamespace(
        val={"": samples}, evaluation_batch_size=4, collate=torch.stack, forward=lambda model, batch: (batch, batch)
    )
    with pytest.raises(UsageError, match="does not call model"):
        example_arguments(nn.Identity(), task)


def test_facts_are_the_plain_fields_of_the_data() -> None:
    data = SimpleNamespace(train=[torch.ones(1)], title="digits", shape=(1, 8, 8), classes=("a", "b"))
    assert facts(data) == {"title": "digits", "shape": (1, 8, 8), "classes": ("a", "b")}


def test_a_task_without_predict_is_refused_in_one_line(alone: Run) -> None:
    if importlib.util.find_spec(f"{PACKAGE}.task.predict"):
        pytest.skip("this task has task/predict.py")
    answer = call("predict", "--checkpoint", str(alone.path), "input")
    assert (answer.code, answer.errors.count("\n")) == (1, 1)
    assert answer.errors.startswith("error: task/predict.py is missing.")
