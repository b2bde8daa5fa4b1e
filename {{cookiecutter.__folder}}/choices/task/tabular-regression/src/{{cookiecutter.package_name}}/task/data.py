"""Rows of a table: the last column is the target, the others are inputs."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..runtime import UsageError
from .settings import TaskConfig

Batch = tuple[Tensor, Tensor]


class Rows:
    """Rows of a table, (rows, columns) float32."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return inputs (batch, columns - 1) and targets (batch,)."""
        rows = self.table[torch.tensor(indices, dtype=torch.int64)]
        return rows[:, :-1], rows[:, -1]


class Data(NamedTuple):
    """Training and validation set."""

    train: Rows
    val: Rows
    title: str


def load(settings: TaskConfig) -> Data:
    """Return the rows of ``task.table``, shuffled once, in the same way in every run.

    Raises:
        UsageError: if the file is not a table of numbers, or has too few rows or columns.
    """
    table = torch.from_numpy(_diabetes() if settings.table is None else read_csv(settings.table))
    cut = max(round(len(table) * settings.val_part), 1)
    if table.shape[1] < 2 or cut >= len(table):
        raise UsageError(
            f"task.table has {len(table)} rows and {table.shape[1]} columns. Use more rows than task.val_part keeps, and "
            "at least two columns, with the target last."
        )
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    return Data(Rows(table[cut:]), Rows(table[:cut]), settings.table or "diabetes")


def _diabetes() -> npt.NDArray[np.float32]:
    # The files of sklearn.datasets.load_diabetes, whose import takes seconds in every process.
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn and sklearn.origin, "pyproject.toml requires scikit-learn"
    folder = Path(sklearn.origin).parent / "datasets" / "data"
    inputs = np.loadtxt(folder / "diabetes_data_raw.csv.gz", np.float32)
    targets = np.loadtxt(folder / "diabetes_target.csv.gz", np.float32)
    return np.column_stack([inputs, targets])


def read_csv(file: str) -> npt.NDArray[np.float32]:
    """Return the numbers below the line of column names, (rows, columns).

    Raises:
        UsageError: if there is anything else.
    """
    try:
        with warnings.catch_warnings():
            # Of no rows, which is an error below.
            warnings.simplefilter("ignore", UserWarning)
            table = np.loadtxt(file, np.float32, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error}). Use a line of names and then only numbers.") from None
    if not table.size or not np.isfinite(table).all():
        raise UsageError(f"{file} has no rows, or NaN or inf in some. Complete or drop these.")
    return table
