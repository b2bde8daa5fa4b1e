"""The oldest and newest supported versions: Python and cookiecutter render, and projects train with their requirements."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import tomli
import versions
from baking import CONTEXT, FULL, QUESTIONS, ROOT, BakedProject, Target, rendered, run
from conftest import Bake, the_sentence
from installing import CONSTRAINTS, FACILITIES, INSTALL_LIMIT_S, Installer
from packaging.requirements import Requirement
from packaging.version import Version
from test_answers import CHOICE, REFUSED

HERE = f"3.{sys.version_info.minor}"
PYTHONS = versions.pythons()
TARGET = Target("cpu", "gloo", "torchrun")
RENDER_LIMIT_S = 600
# Typed at the prompts: two answers other than the first, and a yes.
TYPED = {question: "" for question in QUESTIONS} | {"hardware": "2", "launcher": "4", "use_notebook": "y"}
# The newest that is refused, and one without private variables.
TOO_OLD = ("2.6.0", "1.7.3")
# Tests of a project that use every package it requires.
OWN_TESTS = ("tests/test_settings.py", "tests/test_task.py", "tests/test_training.py")
# A local folder of wheels has one torch, for the Python of the tests. Without it, uv installs any torch for the CPU. Other
# builds are for CUDA and have several gigabytes: only with ANY_TORCH.
ANY_TORCH = "PIP_FIND_LINKS" not in os.environ or "ANY_TORCH" in os.environ
TRAINED = [(python, packages) for python in PYTHONS for packages in versions.RESOLUTIONS]
TRAINED = TRAINED if ANY_TORCH else [(HERE, "lowest")]


class Environment(NamedTuple):
    """A separate Python with a separate home."""

    python: Path
    variables: dict[str, str]
    folder: Path

    def run(self, *command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``python ...`` in its folder."""
        return subprocess.run(
            [self.python, *command],
            check=False,
            cwd=self.folder,
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RENDER_LIMIT_S,
        )


def environment_with(package: str, python: str, folder: Path, variables: dict[str, str]) -> Environment:
    """Create an environment with one package and its requirements."""
    venv = folder / "venv"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    for command in (
        ["venv", "--python", python, str(venv)],
        ["pip", "install", "--python", str(venv), package],
    ):
        done = subprocess.run(
            [*uv, *command], capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
    return Environment(venv / "bin" / "python", variables, folder)


# The page ---------------------------------------------------------------------------------------------------------


def test_the_page_lists_every_requirement() -> None:
    page = versions.PAGE.read_text()
    requirements = CONTEXT["_requirements"]
    rows = [*requirements["backend"].values(), *requirements["task"].values(), requirements["common"]]
    bounded = {name for row in rows for name in row}
    (project,) = ROOT.glob("{{*}}")
    for requirement in bounded:
        assert f"`{requirement}`" in page, requirement
    assert f'requires-python = ">={versions.PYTHONS[0]}"' in (project / "pyproject.toml").read_text()


def test_a_row_is_replaced_by_a_new_result_and_otherwise_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = """\
## Rendered

| Python | cookiecutter | versions | date |
|---|---|---|---|
| 3.9 | newest | kept | 1 |
| 3.10 | newest | old | 1 |

## Trained

| Python | torch | other packages | what ran | versions | date |
|---|---|---|---|---|---|
| 3.10 | 2.6.0 | lowest | trained | by hand | 1 |
| 3.14 | 2.9.0 | lowest | NOT STARTED | gone | 1 |
""".replace("NOT STARTED", versions.NOT_STARTED)
    found = [
        ("rendered", ["3.10", "newest", "new", "2"]),
        ("trained", ["3.10", "2.6.0", "lowest", versions.NOT_STARTED, "none", "2"]),
        ("trained", ["3.11", "2.13.0", "newest", "2 targets", "all", "2"]),
    ]
    monkeypatch.setattr(versions, "seen", lambda: iter(found))
    new = versions.tables(old)
    assert versions.rows_of(versions.section(new, "Rendered")) == [
        ["3.9", "newest", "kept", "1"],
        ["3.10", "newest", "new", "2"],
    ]
    assert versions.rows_of(versions.section(new, "Trained")) == [
        ["3.10", "2.6.0", "lowest", "trained", "by hand", "1"],
        ["3.11", "2.13.0", "newest", "2 targets", "all", "2"],
    ]


# Rendering ----------------------------------------------------------------------------------------------------------


@pytest.mark.executed
@pytest.mark.versions
@pytest.mark.parametrize("cookiecutter", versions.COOKIECUTTERS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_target_is_rendered_byte_for_byte_the_same(
    full: dict[Target, BakedProject],
    bake: Bake,
    environment: dict[str, str],
    python: str,
    cookiecutter: str,
    tmp_path: Path,
) -> None:
    package = versions.COOKIECUTTERS[cookiecutter]
    there = environment_with(package, PYTHONS[python], tmp_path, environment)
    answers = [{**target._asdict(), **FULL} for target in full]
    done = there.run(FACILITIES / "render.py", ROOT, tmp_path, stdin=json.dumps(answers))
    assert done.returncode == 0, done.stdout + done.stderr
    used = json.loads(done.stdout.splitlines()[-1])
    for number, project in enumerate(full.values()):
        assert rendered(tmp_path / str(number) / project.path.name) == rendered(project.path), project

    done = there.run("-m", "cookiecutter", ROOT, stdin="\n".join(TYPED.values()) + "\n")
    assert done.returncode == 0, done.stdout + done.stderr
    typed = bake(hardware="gpu", launcher="slurm", use_notebook=True)
    assert rendered(tmp_path / "my-ddl-project") == rendered(typed.path)

    refused = [f"{question}={answer}" for question, answer in REFUSED[0]._asdict().items()]
    done = there.run("-m", "cookiecutter", ROOT, "--no-input", "--output-dir", "refused", *refused)
    assert done.returncode == 1 and CHOICE.fullmatch(the_sentence(done.stderr)), done.stderr
    versions.record("rendered", python, cookiecutter, ", ".join(map(" ".join, used.items())))


@pytest.mark.executed
@pytest.mark.versions
@pytest.mark.parametrize("old", TOO_OLD)
def test_a_cookiecutter_that_is_too_old_is_refused_in_one_sentence(
    environment: dict[str, str], old: str, tmp_path: Path
) -> None:
    there = environment_with(f"cookiecutter=={old}", HERE, tmp_path, environment)
    done = there.run("-m", "cookiecutter", ROOT, "--no-input")
    assert done.returncode == 1
    sentence = the_sentence(
        "".join(line for line in done.stderr.splitlines(True) if line.startswith("ddl-template"))
    )
    assert sentence.startswith(
        f"cookiecutter {old} renders this template wrongly: install {versions.OLDEST_COOKIECUTTER} "
    )
    assert not (tmp_path / "my-ddl-project").exists()


# Training -----------------------------------------------------------------------------------------------------------


@pytest.mark.executed
@pytest.mark.versions
@pytest.mark.parametrize("packages", versions.RESOLUTIONS)
@pytest.mark.parametrize("python", versions.PYTHONS)
def test_every_python_has_wheels_of_all_that_a_project_requires(
    bake: Bake, environment: dict[str, str], python: str, packages: str
) -> None:
    asked = bake(**TARGET._asdict()).path / "pyproject.toml"
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    options = [
        "--python-version",
        python,
        "--only-binary",
        ":all:",
        "--resolution",
        versions.RESOLUTIONS[packages],
    ]
    done = run(*uv, *options, str(asked), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    torch, ignite = found["torch"].partition("+")[0], found["pytorch-ignite"]
    said = f"python {python}, torch {torch}, ignite {ignite}"
    versions.record("trained", python, torch, packages, versions.NOT_STARTED, said)


@pytest.mark.executed
@pytest.mark.versions
@pytest.mark.parametrize(("python", "packages"), TRAINED)
def test_a_project_trains_and_its_tests_pass(
    bake: Bake, python: str, packages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_RESOLUTION", versions.RESOLUTIONS[packages])
    monkeypatch.setenv("UV_NO_BUILD", "1")
    installer = Installer(
        bake, tmp_path / "environments", PYTHONS[python], None if ANY_TORCH else CONSTRAINTS
    )
    project = installer(TARGET, tmp_path)
    listed = project.succeed("uv", "pip", "list", "--format", "json")
    installed = {package["name"]: package["version"] for package in json.loads(listed)}
    required = tomli.loads((project.path / "pyproject.toml").read_text())["project"]["dependencies"]
    used = {name: installed[name] for name in (Requirement(text).name.lower() for text in required)}
    if packages == "lowest" and python == HERE:
        # A newer Python has no wheels of the lowest versions.
        assert not [text for text in required if not is_lowest(Requirement(text), used)]
    project.succeed("scripts/train.sh")
    summary = project.read_json("runs/default/summary.json")
    assert summary["val_accuracy"] >= 0.97 and summary["world_size"] == 2
    print(project.succeed("python3", "-m", "pytest", "-q", *OWN_TESTS))
    torch = summary["versions"]["torch"].partition("+")[0]
    others = {name: version for name, version in used.items() if name not in ("torch", "pytorch-ignite")}
    said = ", ".join(map(" ".join, (summary["versions"] | others).items()))
    versions.record("trained", python, torch, packages, "a training, and tests of the project", said)


def is_lowest(requirement: Requirement, installed: dict[str, str]) -> bool:
    """Return whether the version is the lowest of its range, or the pinned torch."""
    (bound,) = (Version(part.version) for part in requirement.specifier if part.operator == ">=")
    version = Version(installed[requirement.name.lower()])
    return version.release[: len(bound.release)] == bound.release or (
        requirement.name == "torch" and not ANY_TORCH
    )
