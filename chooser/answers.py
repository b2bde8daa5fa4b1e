"""What can be answered, what becomes of it, and the files of a real project that some answers render."""

import itertools
import json
import os
import random
import runpy
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cookiecutter.environment import StrictEnvironment  # type: ignore[import-untyped]
from cookiecutter.generate import generate_context  # type: ignore[import-untyped]
from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]
from cookiecutter.prompt import prompt_for_config  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
TABLES: dict[str, Any] = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
# It names this clone and its commit. The page's project has none, and its download says so.
VERSION = ".cruft.json"

Answers = dict[str, str]


def words(answer: str | bool) -> str:
    """Return an answer as it is written on a command line."""
    return str(answer).lower() if isinstance(answer, bool) else answer


# Every question that has a list of answers, or yes and no; the others ask for a free text.
CHOICES: dict[str, list[str]] = {
    name: ["true", "false"] if isinstance(value, bool) else value
    for name, value in TABLES.items()
    if not name.startswith("_") and not isinstance(value, str)
}
DEFAULTS: Answers = {
    name: words(TABLES[name] if isinstance(TABLES[name], bool) else TABLES[name][0]) for name in CHOICES
}
# Which of them are refused together, by the hook.
TARGET = ("hardware", "backend", "launcher")
# What cookiecutter.json computes from these alone, for example what "auto" stands for.
COMPUTED = ("__backend", "__launcher", "__run_dir", "__image_pip")
# What a file may depend on.
FEATURES = [*CHOICES, *COMPUTED]


class Combination(NamedTuple):
    """Answers to the questions of TARGET, what they stand for, and if they are refused, why and what is nearest."""

    features: Answers
    why: str | None
    nearest: Answers


def features(answers: Answers) -> Answers:
    """Return the value of each of FEATURES, as cookiecutter computes it."""
    context = generate_context(context_file=str(ROOT / "cookiecutter.json"), extra_context=answers)
    computed = prompt_for_config(context, no_input=True)
    return {name: words(computed[name]) for name in FEATURES}


@cache
def combinations() -> list[Combination]:
    """Every combination of answers to the questions of TARGET, judged by the hook itself."""
    refused_target = hook()["refused_target"]
    found = []
    for row in itertools.product(*(CHOICES[name] for name in TARGET)):
        known = features(dict(zip(TARGET, row, strict=True)))
        target = {name: known.get(f"__{name}", known[name]) for name in TARGET}
        why, nearest = refused_target(TABLES["_support"], **target) or (None, {})
        own = {name: known[name] for name in (*TARGET, *COMPUTED)}
        found.append(Combination(own, why, nearest))
    return found


def hook() -> dict[str, Any]:
    """The functions of the hook that refuses answers."""
    source = (ROOT / "hooks/pre_gen_project.py").read_text(encoding="utf-8")
    context: dict[str, Any] = {"cookiecutter": {}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hook.py")
        text = StrictEnvironment(context=context).from_string(source).render(context)
        file.write_text(text, encoding="utf-8")
        return runpy.run_path(str(file))


def possible_targets() -> list[Answers]:
    """The features of every combination that is not refused."""
    return [combination.features for combination in combinations() if combination.why is None]


def drawn(chance: random.Random, wanted: Answers) -> Answers:
    """Draw the features of a project among those that have the wanted ones."""
    targets = [
        target
        for target in possible_targets()
        if all(target[name] == value for name, value in wanted.items() if name in target)
    ]
    others = {name: chance.choice(CHOICES[name]) for name in CHOICES if name not in TARGET}
    return {**others, **chance.choice(targets), **wanted}


class Project(NamedTuple):
    """What cookiecutter has rendered: its features, the text of each file, and which files can be executed."""

    features: Answers
    files: dict[str, str]
    executable: frozenset[str]


def bake(known: Answers) -> Project:
    """Render a project in a fresh folder; only files in it are written."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings.yaml")
        places = {name: str(Path(folder, name)) for name in ("cookiecutters_dir", "replay_dir")}
        settings.write_text(json.dumps(places), encoding="utf-8")
        project = Path(
            cookiecutter(
                str(ROOT),
                no_input=True,
                extra_context={name: known[name] for name in CHOICES},
                output_dir=str(Path(folder, "output")),
                config_file=str(settings),
            )
        )
        files = {
            path.relative_to(project).as_posix(): path
            for path in sorted(project.rglob("*"))
            if path.is_file() and path.name != VERSION
        }
        return Project(
            known,
            {name: path.read_bytes().decode() for name, path in files.items()},
            frozenset(name for name, path in files.items() if os.access(path, os.X_OK)),
        )


def be_quiet() -> None:
    """Drop what the hooks of a process's bakes print; what goes wrong they write to stderr."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
