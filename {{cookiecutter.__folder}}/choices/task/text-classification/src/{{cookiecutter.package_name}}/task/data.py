"""The texts and their classes: functions of Python's standard library, each with its package, or a table of your own.

Texts differ in length: the dataset answers them one by one, and ``collate`` makes a batch of them.
"""

from __future__ import annotations

import ast
import csv
import random
import re
import sysconfig
import textwrap
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import UsageError
from .settings import TaskConfig

Sample = tuple[Tensor, int]
Batch = tuple[Tensor, Tensor]

PADDING = 0
# Letters and digits in a row, or one other sign; an underscore parts words, as white space does.
WORD = re.compile(r"[^\W_]+|[^\w\s]")
# Each has two hundred functions or more, in every version of Python.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")


class Texts:
    """Texts, each with the number of its class; their first ``length`` words are read."""

    def __init__(self, samples: list[tuple[str, int]], vocabulary: int, length: int) -> None:
        self.samples, self.vocabulary, self.length = samples, vocabulary, length

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """Return the tokens of a text, (words,) int64 from 1 to ``vocabulary - 1``, at least one; and its class."""
        text, label = self.samples[index]
        words = [match[0] for match in islice(WORD.finditer(text.lower()), self.length)] or [""]
        # Python's own hash of a word differs from process to process.
        return torch.tensor([zlib.crc32(word.encode()) % (self.vocabulary - 1) + 1 for word in words]), label


def collate(samples: list[Sample]) -> Batch:
    """Return tokens (batch, words of the longest text), PADDING behind the shorter ones, and classes (batch,)."""
    texts = pad_sequence([text for text, _ in samples], batch_first=True, padding_value=PADDING)
    return texts, torch.tensor([label for _, label in samples])


class Data(NamedTuple):
    """The two sets of texts, and what the model needs to know of them."""

    train: Texts
    val: Texts
    title: str
    classes: tuple[str, ...]
    """names, in the order of their numbers"""


def load(settings: TaskConfig) -> Data:
    """Return the texts of ``task.table``, each once, shuffled in the same way in every run.

    Raises:
        UsageError: if the file is not a table of texts and labels, or has two labels for one text.
    """
    labels: dict[str, str] = {}
    for text, label in _functions() if settings.table is None else _csv(settings.table):
        if labels.setdefault(text, label) != label and settings.table:
            both, start = f"{labels[text]} and {label}", text[:40]
            raise UsageError(f"task.table {settings.table} has a text with two labels, {both}: keep one of {start!r}")
    classes = tuple(sorted(set(labels.values())))
    samples = [(text, classes.index(label)) for text, label in labels.items()]
    random.Random(0).shuffle(samples)
    cut = round(len(samples) * settings.val_part)
    train, val = (Texts(part, settings.vocabulary, settings.length) for part in (samples[cut:], samples[:cut]))
    return Data(train, val, settings.table or "functions of Python", classes)


def _functions() -> Iterator[tuple[str, str]]:
    """Yield the text of each function and method, and its package, in the same order in every process."""
    library = Path(sysconfig.get_path("stdlib"))
    for file in (file for package in PACKAGES for file in sorted((library / package).rglob("*.py"))):
        package, *folders = file.relative_to(library).parts
        # Some versions of Python have the tests of unittest in it.
        if "test" in folders:
            continue
        code = file.read_text("utf-8")
        # Not splitlines: to the parser, a form feed does not end a line.
        lines = code.split("\n")
        for node in ast.parse(code).body:
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield textwrap.dedent("\n".join(lines[function.lineno - 1 : function.end_lineno])), package


def _csv(file: str) -> list[tuple[str, str]]:
    try:
        # Spreadsheets write UTF-8 with a mark at its beginning.
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = [(text, label) for text, label in filter(None, csv.reader(lines))]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"task.table {file} cannot be read ({error}): give it two columns, text and label") from None
    if rows[:1] != [("text", "label")]:
        raise UsageError(f"task.table {file} does not begin with text,label: give it these names of its columns")
    return rows[1:]
