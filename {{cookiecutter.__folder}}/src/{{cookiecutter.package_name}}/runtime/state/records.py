"""Records of evaluations and steps: the lines of metrics.jsonl and steps.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..report import UsageError, logger
from . import to_json, unwritable

Record = dict[str, Any]


def read_records(file: Path, last_step: int, score: str = "iteration") -> list[Record]:
    """Return the records up to a step, or to the first damaged one: a killed process leaves half a line."""
    records: list[Record] = []
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        try:
            record = {name: math.nan if value is None else value for name, value in json.loads(line).items()}
            float(record[score])
            if record["iteration"] > last_step:
                break
        except (ValueError, KeyError, TypeError, AttributeError):
            break
        records.append(record)
    return records


def to_lines(*records: Record) -> str:
    """Return one line of JSON for each record."""
    return "".join(to_json(record) + "\n" for record in records)


def append(file: Path, record: Record) -> None:
    """Add a line to a file.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        with file.open("a") as lines:
            lines.write(to_lines(record))
    except OSError as error:
        raise unwritable(file, error) from None


class Evaluations:
    """The records of metrics.jsonl in the order of their steps, and the best of them.

    Args:
        score: the entry by which records are compared.
    """

    def __init__(self, score: str, higher_is_better: bool) -> None:
        self.score, self.higher_is_better = score, higher_is_better
        self.all: list[Record] = []

    def add(self, record: Record) -> None:
        """Add a record, and warn if an entry is NaN or inf.

        Raises:
            UsageError: if it lacks the score.
        """
        if self.score not in record:
            fix = "Set SCORE in task/objective.py to a metric."
            raise UsageError(f"an evaluation has no {self.score}, because evaluate.py returned no loss. {fix}", 1)
        if broken := [name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)]:
            logger.warning("%s: NaN or inf; check the validation data", ", ".join(broken))
        self.all.append(record)

    def scores(self) -> list[float]:
        """Return the score of each record."""
        return [float(record[self.score]) for record in self.all]

    def rank(self, record: Record) -> float:
        """Return the score as a number that is larger for better weights; -inf for NaN."""
        value = float(record[self.score])
        return -math.inf if math.isnan(value) else value if self.higher_is_better else -value

    def best(self) -> Record:
        """Return the record with the best score, the first of equal ones."""
        return max(self.all, key=self.rank)

    def since_best(self) -> int:
        """Return how many records followed the best one."""
        return len(self.all) - 1 - self.all.index(self.best()) if self.all else 0

    def has_score(self) -> bool:
        """Return whether a score is a finite number."""
        return bool(self.all) and math.isfinite(self.rank(self.best()))
