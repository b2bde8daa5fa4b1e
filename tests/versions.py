"""What the tests have seen of versions of Python, cookiecutter, torch and ignite: the tables of docs/versions.md.

``python tests/versions.py`` writes them from what was seen here. What was not seen here keeps its row, with its date: no machine
has each Python, and a torch for it.
"""

import datetime
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matrix
from baking import CONTEXT, ROOT

SEEN = ROOT / ".cache" / "versions"
PAGE = ROOT / "docs" / "versions.md"

# The first is that of requires-python in every project.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST_COOKIECUTTER = str(CONTEXT["_oldest_cookiecutter"])
COOKIECUTTERS = {"oldest": f"cookiecutter=={OLDEST_COOKIECUTTER}", "newest": "cookiecutter<3"}
# uv's word for each way to choose packages.
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
NOT_STARTED = "not started: there are wheels of all packages"


class Table(NamedTuple):
    """A table of the page; the first cells of a row tell it from the others."""

    heading: str
    columns: tuple[str, ...]
    keys: int


TABLES = {
    "rendered": Table("Rendered", ("Python", "cookiecutter", "versions", "date"), 2),
    "trained": Table("Trained", ("Python", "torch", "other packages", "what ran", "versions", "date"), 3),
}
Rows = dict[tuple[str, ...], list[str]]


def pythons() -> dict[str, str]:
    """Return the interpreters of this machine by their version: on the path, or kept by pyenv or uv."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    kept = [Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python"]
    for version in PYTHONS:
        candidates = [shutil.which(f"python{version}")]
        candidates += [
            str(path) for folder in kept for path in folder.glob(f"*{version}.*/bin/python{version}")
        ]
        for candidate in filter(None, candidates):
            # A command of that name need not lead to a Python.
            ask = [candidate, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
            done = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
            if done.stdout.strip() == version:
                found.setdefault(version, candidate)
    return {version: found[version] for version in PYTHONS if version in found}


def record(table: str, *cells: str) -> None:
    """Remember a row; the date is added to it."""
    SEEN.mkdir(parents=True, exist_ok=True)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    # What has run is another file than what could.
    name = "-".join([table, *cells[: TABLES[table].keys], *(["not-started"] if NOT_STARTED in cells else [])])
    (SEEN / f"{name}.json").write_text(json.dumps({"table": table, "cells": [*cells, today]}))


def seen() -> Iterator[tuple[str, list[str]]]:
    """Yield table and cells of each row that the tests have seen, at last those of the support matrix."""
    for file in sorted(SEEN.glob("*.json")):
        row = json.loads(file.read_text())
        yield row["table"], row["cells"]
    executed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in matrix.rows(matrix.MATRIX.read_text()):
        *_, date, versions, _difference, _ = re.split(r"\s*\|\s*", row)
        if found := re.match(r"python (3\.\d+)\S+, torch ([\d.]+)\S*, ignite \S+(?<!,)", versions):
            executed.setdefault((found[1], found[2]), []).append((date, found[0]))
    for (python, torch), targets in executed.items():
        date, versions = max(targets)
        what = f"targets of the [support matrix](support-matrix.md): {len(targets)}"
        yield "trained", [python, torch, "newest", what, versions, date]


def tables(old: str) -> str:
    """Return the tables for what has been seen, in the place of the ``old`` ones."""
    new = list(seen())
    text = ""
    for name, table in TABLES.items():
        rows: Rows = {}
        known = [cells for cells in rows_of(section(old, table.heading)) if NOT_STARTED not in cells]
        # What was only resolved takes nothing back that has run.
        resolved = [cells for kind, cells in new if kind == name and NOT_STARTED in cells]
        run = [cells for kind, cells in new if kind == name and NOT_STARTED not in cells]
        for cells in [*resolved, *known, *run]:
            rows[tuple(cells[: table.keys])] = cells
        lines = [table.columns, ["---"] * len(table.columns), *(rows[key] for key in sorted(rows, key=order))]
        text += f"## {table.heading}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"
    return text.rstrip("\n") + "\n"


def section(document: str, heading: str) -> str:
    """Return what stands under a heading."""
    return document.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows that begin with a version."""
    return [re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if re.match(r"\| \d", line)]


def order(key: tuple[str, ...]) -> list[tuple[list[int], str]]:
    """Sort versions by their numbers."""
    return [([int(number) for number in re.findall(r"\d+", cell)], cell) for cell in key]


def main() -> None:
    """Write the tables at the end of the page."""
    old = PAGE.read_text()
    first = f"## {next(iter(TABLES.values())).heading}\n"
    PAGE.write_text(old.partition(first)[0] + tables(old))


if __name__ == "__main__":
    main()
