"""The predictions of task/predict.py."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Run, call
from sklearn.datasets import load_diabetes


def test_each_row_of_a_table_gets_a_target(alone: Run, tmp_path: Path) -> None:
    diabetes = load_diabetes(scaled=False)
    rows = [",".join(map(str, row)) for row in (diabetes.feature_names, *diabetes.data[:50])]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(rows))
    answer = call("predict", "--checkpoint", str(alone.path), str(file))
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["row"] for line in lines] == [*range(1, 51)]
    # Their mean is 152, and 77 is their standard deviation.
    assert abs(sum(line["prediction"] for line in lines) / 50 - diabetes.target[:50].mean()) < 40
    file.write_text("a,b\n1,2\n")
    answer = call("predict", "--checkpoint", str(alone.path), str(file))
    assert (answer.code, answer.errors.count("has 2 columns, not 10")) == (2, 1), answer.errors
