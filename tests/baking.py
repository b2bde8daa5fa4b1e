"""What the tests know of the template: its questions, its targets, and how a baked project is read."""

import ast
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import tomli
import yaml

ROOT = Path(__file__).resolve().parents[1]
CONTEXT: dict[str, Any] = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
QUESTIONS = {key: value for key, value in CONTEXT.items() if not key.startswith("_")}
SUPPORT: dict[str, Any] = CONTEXT["_support"]

TIME_LIMIT_S = 60

# Only a project that is rendered from a commit can be updated, and says so.
VERSION = ".cruft.json"


def has_a_version(template: Path) -> bool:
    """Return whether a commit of the template holds all that is rendered."""
    status = ["git", "-C", str(template), "status", "--porcelain", "--", "hooks", "*cookiecutter.*"]
    done = subprocess.run(status, check=False, capture_output=True, text=True)
    return (template / ".git").exists() and (done.returncode, done.stdout) == (0, "")


class Target(NamedTuple):
    hardware: str
    backend: str
    launcher: str

    def __str__(self) -> str:
        return "-".join(self)


def _choices(question: str) -> list[str]:
    return [choice for choice in QUESTIONS[question] if choice != "auto"]


COMBINATIONS = [
    Target(*combination)
    for combination in itertools.product(_choices("hardware"), _choices("backend"), _choices("launcher"))
]
TARGETS = [
    Target(hardware, backend, launcher)
    for backend, row in SUPPORT.items()
    for hardware in row["hardware"]
    for launcher in row["launchers"]
]

# Without a GPU, the first stands in for all that has the source of a GPU, and the second has manifests of its own; the others
# run what other targets have run, byte for byte: once a week is enough.
REPRESENTATIVE = Target("gpu", "nccl", "torchrun")
WITH_OWN_MANIFESTS = Target("gpu", "nccl", "kubernetes")
ADDS_NOTHING = [
    target
    for target in TARGETS
    if target.hardware == "gpu" and target not in (REPRESENTATIVE, WITH_OWN_MANIFESTS)
]

PACKS = ("use_studies", "use_strategies", "use_diagnosis", "use_export")

# Every file that an answer can add is there, or none is; and formatting must not depend on how long a name is.
FULL: dict[str, Any] = {
    "tracker": "tensorboard",
    "use_docker": True,
    "use_github_actions": True,
    "use_notebook": True,
    **dict.fromkeys(PACKS, True),
}
BARE: dict[str, Any] = {
    "project_name": "-".join(["long"] * 40),
    "package_name": "x" * 40,
    "description": " ".join(["long"] * 40),
    "author_name": " ".join(["Long"] * 40),
    "license": "none",
    "use_docker": False,
    "use_github_actions": False,
    "use_notebook": False,
}
SHORT = {"project_name": "x", "package_name": "x", "description": "", "author_name": "x"}


def pairwise(choices: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield few combinations of ``choices`` that hold every pair of answers; greedy, so not the fewest."""
    rows = [dict(zip(choices, row, strict=True)) for row in itertools.product(*choices.values())]
    pairs = {id(row): set(itertools.combinations(row.items(), 2)) for row in rows}
    missing = set().union(*pairs.values())
    while missing:
        best = max(rows, key=lambda row: len(pairs[id(row)] & missing))
        missing -= pairs[id(best)]
        yield best


@dataclass(frozen=True)
class BakedProject:
    """A project on disk. Tests share it, so none may write into it."""

    path: Path
    answers: dict[str, Any]

    @property
    def target(self) -> Target:
        return Target(self.answers["hardware"], self.answers["__backend"], self.answers["__launcher"])

    @property
    def package(self) -> str:
        return str(self.answers["package_name"])

    def __str__(self) -> str:
        answers = {key: self.answers[key] for key in QUESTIONS if self.answers[key] != QUESTIONS[key]}
        return f"{self.target} {answers}"

    def files(self) -> list[str]:
        found = (path for path in self.path.rglob("*") if not path.is_dir() or path.is_symlink())
        return sorted(path.relative_to(self.path).as_posix() for path in found)

    def read(self, name: str) -> str:
        # newline="": a carriage return is a fault, not a line end.
        with (self.path / name).open(encoding="utf-8", newline="") as file:
            return file.read()


def snapshot(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Content and executable bit of every file under ``folder``, git's own aside."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def rendered(project: Path) -> dict[str, tuple[bytes, bool]]:
    """The files of a project, whichever version of the template they are from."""
    return {name: content for name, content in snapshot(project).items() if name != VERSION}


def run(
    *command: str | Path, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end within the time limit; the exit code is for the caller to judge."""
    return subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )


def missing_facility(what: str, command: str) -> NoReturn:
    """Skip, saying how to get what is missing; where CI is set nothing may be missing, so fail."""
    sentence = f"{what} is missing: {command}"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def tool(name: str, command: str = f"{sys.executable} -m pip install -r tests/requirements.txt") -> str:
    """Path of a command, looked up beside this Python first, because the environment may not be activated."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        missing_facility(name, command)
    return path


def assert_parses(name: str, text: str) -> None:
    """Read a file with the parser of its language."""
    if name.endswith(".py"):
        ast.parse(text)
    elif name.endswith((".yaml", ".yml")):
        assert list(yaml.safe_load_all(text)) != [None], f"{name} says nothing"
    elif name.endswith(".ipynb"):
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                ast.parse("".join(cell["source"]))
    elif name.endswith(".json"):
        json.loads(text)
    elif name.endswith(".toml"):
        tomli.loads(text)
    elif name.endswith((".sh", ".sbatch")):
        done = run(tool("bash"), "-n", cwd=ROOT, stdin=text)
        assert done.returncode == 0, f"{name}: {done.stderr}"
