"""What the source of a rendered project imports and names, read without running it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OF_EVERY_MODULE = {"__doc__", "__file__", "__name__", "__package__"}


def unresolved(package: Path) -> list[str]:
    """Return what modules of a package import from each other, or name in a command, and what is not there."""
    return sorted(
        f"{file.relative_to(package)}: {what}"
        for file in package.rglob("*.py")
        for what in _missing(file, package)
    )


def _missing(file: Path, package: Path) -> Iterator[str]:
    tree = parsed(file.read_text(encoding="utf-8"))
    modules: dict[str, Path] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                if module := module_at(base / alias.name):
                    modules[alias.asname or alias.name] = module
                elif alias.name not in names_in(module_at(base)):
                    yield f"{base.relative_to(package)}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Command":
            place, _, name = ast.literal_eval(node.args[1]).partition(":")
            if place and name not in names_in(module_at(package.joinpath(*place.split(".")))):
                yield f"the command {place}:{name}"
    hidden = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    hidden |= {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id not in hidden
        ):
            module = modules.get(node.value.id)
            if module and not (node.attr in names_in(module) or module_at(module.parent / node.attr)):
                yield f"{module.relative_to(package)}.{node.attr}"


def module_at(place: Path) -> Path | None:
    """Return the file of a module, given its path without an ending."""
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def names_in(module: Path | None) -> set[str]:
    """Return the names that a module defines or imports."""
    return OF_EVERY_MODULE | _names(module.read_text(encoding="utf-8")) if module else set()


@cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree; most projects have the same source."""
    return ast.parse(text)


@cache
def _names(text: str) -> set[str]:
    found: set[str] = set()
    nodes: list[ast.AST] = [*parsed(text).body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            nodes += ast.iter_child_nodes(node)
    return found
