"""Texts and their classes: functions of Python's standard library by package, or a table of your own.

Texts differ in length, so the dataset returns them one by one and ``collate`` pads them.
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

from ..runtime import UsageError
from .settings import TaskConfig

Sample = tuple[Tensor, int]
Batch = tuple[Tensor, Tensor]

PADDING = 0
# A run of letters and digits, or one other character; underscores and white space separate words.
WORD = re.compile(r"[^\W_]+|[^\w\s]")
# Each has at least two hundred functions, in every version of Python.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")


class Texts:
    """Texts with the numbers of their classes; words after the first ``length`` are cut off."""

    def __init__(self, samples: list[tuple[str, int]], vocabulary: int, length: int) -> None:
        self.samples, self.vocabulary, self.length = samples, vocabulary, length

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """Return the tokens of a text, (words,) int64 from 1 to ``vocabulary - 1``, at least one, and its class."""
        text, label = self.samples[index]
        words = [match[0] for match in islice(WORD.finditer(text.lower()), self.length)] or [""]
        # Python's own hash differs between processes.
        return torch.tensor([zlib.crc32(word.encode()) % (self.vocabulary - 1) + 1 for word in words]), label


def collate(samples: list[Sample]) -> Batch:
    """Return tokens (batch, words of the longest text), padded at the end, and classes (batch,)."""
    texts = pad_sequence([text for text, _ in samples], batch_first=True, padding_value=PADDING)
    return texts, torch.tensor([label for _, label in samples])


class Data(NamedTuple):
    """Training and validation set, and what the model needs to know about them."""

    train: Texts
    val: Texts
    title: str
    classes: tuple[str, ...]
    """names, in the order of their numbers"""


def load(settings: TaskConfig) -> Data:
    """Return the texts of ``task.table`` without duplicates, shuffled in the same way in every run.

    Raises:
        UsageError: if the file is not a table of texts and labels, or has two labels for one text.
    """
    labels: dict[str, str] = {}
    for text, label in _functions() if settings.table is None else _csv(settings.table):
        if labels.setdefault(text, label) != label and settings.table:
            both = f"{labels[text]} and {label}"
            raise UsageError(f"task.table {settings.table} has two labels, {both}, for {text[:40]!r}. Keep one.")
    classes = tuple(sorted(set(labels.values())))
    samples = [(text, classes.index(label)) for text, label in labels.items()]
    random.Random(0).shuffle(samples)
    cut = round(len(samples) * settings.val_part)
    train, val = (Texts(part, settings.vocabulary, settings.length) for part in (samples[cut:], samples[:cut]))
    return Data(train, val, settings.table or "functions of Python", classes)


def _functions() -> Iterator[tuple[str, str]]:
    """Yield each function and method with its package, in the same order in every process."""
    library = Path(sysconfig.get_path("stdlib"))
    for file in (file for package in PACKAGES for file in sorted((library / package).rglob("*.py"))):
        package, *folders = file.relative_to(library).parts
        # Some versions of Python include the tests of unittest.
        if "test" in folders:
            continue
        code = file.read_text("utf-8")
        # splitlines would also split at form feeds, which the parser does not.
        lines = code.split("\n")
        for node in ast.parse(code).body:
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield textwrap.dedent("\n".join(lines[function.lineno - 1 : function.end_lineno])), package


def _csv(file: str) -> list[tuple[str, str]]:
    try:
        # Spreadsheets start UTF-8 with a byte order mark.
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = [(text, label) for text, label in filter(None, csv.reader(lines))]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"task.table {file} cannot be read ({error}). Use two columns, text and label.") from None
    if rows[:1] != [("text", "label")]:
        raise UsageError(f"task.table {file} does not start with a line text,label. Name its columns so.")
    return rows[1:]
