"""Count what a project's owner receives, beside the budgets: python3 tools/count.py PROJECT."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

# Of every target without packs.
BUDGETS = {
    "source lines": 4_440,
    "modules": 39,
    "yours": 1_300,
    "runtime": 3_490,
    "test lines": 1_500,
    "words of README, AGENTS and docs": 5_000,
    "longest function": 60,
    "longest class": 150,
    "longest module": 300,
    "imports below train.py": 8,
    "settings": 30,
    "names of the face": 20,
}


def count(project: Path) -> dict[str, int]:
    """Return the counts of a rendered project."""
    package = next((project / "src").glob("*/__main__.py")).parent
    modules = {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    lines = {file: text.count("\n") for file, text in modules.items()}
    runtime = sum(number for file, number in lines.items() if "runtime" in file.parts)
    trees = {file: ast.parse(text) for file, text in modules.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    pages = [project / "README.md", project / "AGENTS.md", *(project / "docs").glob("*.md")]
    return {
        "source lines": sum(lines.values()),
        "modules": len(modules),
        "yours": sum(lines.values()) - runtime,
        "runtime": runtime,
        "test lines": sum(file.read_text().count("\n") for file in (project / "tests").rglob("*.py")),
        "words of README, AGENTS and docs": sum(
            len(page.read_text(encoding="utf-8").split()) for page in pages
        ),
        "longest function": max(map(length, (node for node in nodes if isinstance(node, ast.FunctionDef)))),
        "longest class": max(map(length, (node for node in nodes if isinstance(node, ast.ClassDef)))),
        "longest module": max(lines.values()),
        "imports below train.py": depth(package / "train.py", package),
        "settings": sum(
            isinstance(field, ast.AnnAssign)
            for node in ast.walk(trees[package / "config.py"])
            if isinstance(node, ast.ClassDef) and node.name != "Config"
            for field in node.body
        ),
        "names of the face": len(
            re.findall(r" as \w+$", modules[package / "runtime/__init__.py"], re.MULTILINE)
        ),
    }


def length(node: ast.FunctionDef | ast.ClassDef) -> int:
    """Return the lines of a definition."""
    return (node.end_lineno or 0) - node.lineno + 1


def imports_of(file: Path, package: Path) -> set[Path]:
    """Return the modules of the package that a module imports anywhere, lazily or for types too."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = file.parents[node.level - 1].joinpath(*(node.module or "").split(".")[:-1])
            last = (node.module or "").split(".")[-1]
            base = folder / last if last else folder
            names = [base.with_suffix(".py"), base / "__init__.py"]
            names += [
                inside
                for alias in node.names
                for inside in (base / f"{alias.name}.py", base / alias.name / "__init__.py")
            ]
            members = [name for name in names[2:] if name.is_file()]
            # A module that is imported by name counts itself, not the package that holds it.
            found |= (
                {*members}
                if len(members) == len(node.names)
                else {*members, *filter(Path.is_file, names[:2])}
            )
    return {file for file in found if file.is_relative_to(package)}


def followed_from(file: Path, package: Path) -> set[Path]:
    """Return the modules that a module imports; for a name of the face, which is lazy, the module behind it."""
    others, face = imports_of(file, package) - {file}, package / "runtime/__init__.py"
    if face not in others:
        return others
    behind = {}
    for module, name in re.findall(r"from \.([\w.]+) import (\w+) as", face.read_text(encoding="utf-8")):
        base = face.parent.joinpath(*module.split("."))
        behind[name] = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    names = {
        alias.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level and node.module == "runtime"
        for alias in node.names
    }
    return (others - {face}) | {behind[name] for name in names & behind.keys()}


@cache
def depth(file: Path, package: Path) -> int:
    """Return the length of the longest chain of imports below a module."""
    return max((1 + depth(other, package) for other in followed_from(file, package)), default=0)


if __name__ == "__main__":
    for name, number in count(Path(sys.argv[1])).items():
        print(f"{name:34} {number:6,} of {BUDGETS[name]:6,}")
