"""Take rendered projects apart into few texts, and find out on which answers each of them depends.

A file that depends on few questions is one part: a text for each combination of their answers. README.md depends on
most questions, though each of its lines depends on few: such a file is a row of parts. To put a project together, take
from each part the text for its answers; a file of which no part has a text is not in that project.

What a text depends on is guessed: on the simplest set of questions that explains every project seen so far. build.py
tries each guess on projects that were not seen.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from graphlib import TopologicalSorter
from typing import NamedTuple

from answers import CHOICES, FEATURES, Answers, Project, possible_targets

# What depends on more combinations of answers than these is taken apart further.
MOST_COMBINATIONS = 64
MOST_QUESTIONS = 4

Questions = tuple[str, ...]
Key = tuple[str, ...]
# A piece of a file in each of the projects; empty where a project does not have it.
Column = tuple[str, ...]


class Part(NamedTuple):
    """The questions that a piece of a file depends on, and its text for combinations of their answers."""

    questions: Questions
    texts: dict[Key, str]


Files = dict[str, list[Part]]


def key(questions: Questions, features: Answers) -> Key:
    return tuple(features[name] for name in questions)


def put_together(files: Files, features: Answers) -> dict[str, str]:
    """Return the files of a project, as filesOf of project.js does in the page."""
    texts = {
        name: "".join(part.texts.get(key(part.questions, features), "") for part in parts)
        for name, parts in files.items()
    }
    return {name: text for name, text in texts.items() if text}


@cache
def keys(questions: Questions) -> frozenset[Key]:
    """Every combination of answers to these questions that a project can have."""
    of_target = possible_targets()[0].keys()
    targets = {
        tuple(target[name] for name in questions if name in of_target) for target in possible_targets()
    }
    others = itertools.product(*(CHOICES[name] for name in questions if name not in of_target))
    order = sorted(questions, key=lambda name: name not in of_target)
    combined = (
        dict(zip(order, target + other, strict=True)) for target, other in itertools.product(targets, others)
    )
    return frozenset(key(questions, features) for features in combined)


@cache
def simplest_first() -> list[Questions]:
    """Sets of questions, those with the fewest combinations of answers first."""
    of_target = possible_targets()[0].keys()

    def others(questions: Questions) -> int:
        return math.prod(len(CHOICES[name]) for name in questions if name not in of_target)

    sets = (
        questions
        for size in range(MOST_QUESTIONS + 1)
        for questions in itertools.combinations(FEATURES, size)
        if others(questions) <= MOST_COMBINATIONS and len(keys(questions)) <= MOST_COMBINATIONS
    )
    return sorted(sets, key=lambda questions: (len(keys(questions)), questions))


class Guess:
    """How the files of projects come about, judged by some of them."""

    def __init__(self, projects: Sequence[Project]) -> None:
        self._projects = projects
        self._keys: dict[Questions, list[Key]] = {}
        self._questions: dict[Column, Questions | None] = {}
        names = sorted({name for project in projects for name in project.files})
        self.files: Files = {name: self._parts(name) for name in names}

    def unseen(self) -> list[Answers]:
        """Combinations of answers for which a part must have a text, and no project has told it."""
        found = {part.questions for parts in self.files.values() for part in parts}
        return [
            dict(zip(questions, missing, strict=True))
            for questions in sorted(found)
            for missing in sorted(keys(questions).difference(self._keys[questions]))
        ]

    def _parts(self, name: str) -> list[Part]:
        """Explain a file as a whole; if that fails, each of its lines, joined where they depend on the same."""
        whole = tuple(project.files.get(name, "") for project in self._projects)
        if (questions := self._depends_on(whole)) is not None:
            return [self._part(questions, whole)]
        joined: list[tuple[Questions, Column]] = []
        for column in aligned(whole):
            if (questions := self._depends_on(column)) is None:
                many = f"{MOST_QUESTIONS} questions, or {MOST_COMBINATIONS} combinations of answers"
                raise ValueError(f"{name}: more than {many} decide whether it holds {max(column)!r}")
            if joined and joined[-1][0] == questions:
                column = tuple(map(str.__add__, joined.pop()[1], column))
            joined.append((questions, column))
        return [self._part(*pair) for pair in joined]

    def _depends_on(self, column: Column) -> Questions | None:
        """Return the simplest questions whose answers decide which text stands in the column."""
        if column not in self._questions:
            self._questions[column] = next(
                (questions for questions in simplest_first() if self._decides(questions, column)), None
            )
        return self._questions[column]

    def _decides(self, questions: Questions, column: Column) -> bool:
        texts: dict[Key, str] = {}
        return all(
            texts.setdefault(*pair) == pair[1] for pair in zip(self._of(questions), column, strict=True)
        )

    def _of(self, questions: Questions) -> list[Key]:
        """The answers of each project."""
        if questions not in self._keys:
            self._keys[questions] = [key(questions, project.features) for project in self._projects]
        return self._keys[questions]

    def _part(self, questions: Questions, column: Column) -> Part:
        pairs = zip(self._of(questions), column, strict=True)
        return Part(questions, {answers: text for answers, text in sorted({*pairs}) if text})


def aligned(versions: Column) -> list[Column]:
    """Put the lines of all versions below each other, in the order that they have wherever some stand together.

    A line that repeats in a version is one piece with the lines after it, up to the first that does not: so each piece
    has one place.
    """
    lines = {version: re.findall(r".*\n|.+", version) for version in sorted({*versions})}
    repeated = {line for own in lines.values() for line, number in Counter(own).items() if number > 1}
    pieces: dict[str, list[str]] = {}
    order: TopologicalSorter[str] = TopologicalSorter()
    for version, own in lines.items():
        pieces[version] = [""]
        for line in own:
            pieces[version][-1] += line
            if line not in repeated:
                pieces[version].append("")
        for before, after in itertools.pairwise(pieces[version]):
            order.add(after, before)
    return [
        tuple(piece if piece in pieces[version] else "" for version in versions)
        for piece in order.static_order()
        if piece
    ]
