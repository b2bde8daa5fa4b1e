"""The targets of new rows: ``predict --checkpoint FILE rows.csv ...``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..runtime import UsageError
from .data import Data, read_csv


def predict(model: nn.Module, data: Data, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the target of each row of CSV files with a line of names and all columns except the target.

    Raises:
        UsageError: if a file has other columns.
    """
    columns = data.train.table.shape[1] - 1
    for name in inputs:
        rows = torch.from_numpy(read_csv(name))
        if rows.shape[1] != columns:
            raise UsageError(
                f"{name} has {rows.shape[1]} columns, not {columns}. Use those of the table, without the target."
            )
        for number, target in enumerate(model(rows).tolist(), 1):
            yield {"input": name, "row": number, "prediction": target}
