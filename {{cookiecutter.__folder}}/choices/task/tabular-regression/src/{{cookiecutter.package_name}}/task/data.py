"""The rows of a table: all columns but the last are inputs, the last is the target."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]


class Rows:
    """Rows of a table, (rows, columns) float32, read a batch at a time."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return inputs (batch, columns - 1) and targets (batch,)."""
        rows = self.table[torch.tensor(indices, dtype=torch.int64)]
        return rows[:, :-1], rows[:, -1]


class Data(NamedTuple):
    """The two sets of rows, and what the model needs to know of them."""

    train: Rows
    val: Rows
    title: str


def load(settings: TaskConfig) -> Data:
    """Return the rows of ``task.table``, shuffled once, the same way in every run.

    Raises:
        UsageError: if the file is not a table of numbers, or leaves no rows to train on.
    """
    table = torch.from_numpy(_diabetes() if settings.table is None else read_csv(settings.table))
    if table.shape[1] < 2:
        raise UsageError(f"{settings.table} has one column: give it inputs, and the target last")
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    cut = max(round(len(table) * settings.val_part), 1)
    if cut >= len(table):
        raise UsageError(f"task.val_part {settings.val_part} leaves none of {len(table)} rows to train on: lower it")
    return Data(Rows(table[cut:]), Rows(table[:cut]), settings.table or "diabetes")


def _diabetes() -> npt.NDArray[np.float32]:
    # The files behind load_diabetes of sklearn.datasets, whose import brings all of scipy: seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml asks for scikit-learn"
    folder = Path(sklearn.origin).parent / "datasets" / "data"
    inputs = np.loadtxt(folder / "diabetes_data_raw.csv.gz", np.float32)
    targets = np.loadtxt(folder / "diabetes_target.csv.gz", np.float32)
    return np.column_stack([inputs, targets])


def read_csv(file: str) -> npt.NDArray[np.float32]:
    """Return the numbers below the line of names, (rows, columns).

    Raises:
        UsageError: if there is anything else.
    """
    try:
        with warnings.catch_warnings():
            # That there are no rows is said below.
            warnings.simplefilter("ignore", UserWarning)
            table = np.loadtxt(file, np.float32, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error}): give it numbers alone below the names") from None
    if not table.size or not np.isfinite(table).all():
        raise UsageError(f"{file} has no rows, or cells that are not numbers: complete or drop them")
    return table
