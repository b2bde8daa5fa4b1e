"""Fixtures: bake a project in this process, have one refused, or act as a user with a shell of their own."""

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import cluster
import pytest
from baking import (
    BARE,
    FULL,
    PACKS,
    QUESTIONS,
    ROOT,
    SHORT,
    TARGETS,
    BakedProject,
    Target,
    missing_facility,
    pairwise,
    run,
)
from cookiecutter.exceptions import FailedHookException  # type: ignore[import-untyped]
from hypothesis import settings
from installing import Installer, one_at_a_time
from jinja2 import Environment

# A bake has no steady duration, and a fuzz test keeps its failures in its message, not in a folder.
settings.register_profile("bakes", deadline=None, database=None)
settings.load_profile("bakes")

# What a script starts in the background ignores Ctrl-C, and so would all that these tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that bake every target: continuous integration leaves them to ``nox``."""
    for item in items:
        if {"projects", "full", "bare"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("wide")


Bake = Callable[..., BakedProject]
Refuse = Callable[..., str]
Shell = Callable[..., CompletedProcess[str]]
Check = Callable[..., None]


def known(answers: dict[str, Any]) -> dict[str, Any]:
    """Cookiecutter ignores an unknown key without a word, and the test would then test the default."""
    unknown = answers.keys() - QUESTIONS.keys()
    assert not unknown, f"{sorted(unknown)} are not questions of cookiecutter.json"
    return answers


@pytest.fixture(scope="session", autouse=True)
def templates_are_compiled_once() -> Iterator[None]:
    """Let bakes share what Jinja compiles, always with the same settings: that takes half the time of a bake."""
    compile_template, compiled = Environment.compile, dict[Any, Any]()

    def compile_once(jinja: Environment, source: Any, *arguments: Any, **options: Any) -> Any:
        key = (source, arguments, *options.items())
        if key not in compiled:
            compiled[key] = compile_template(jinja, source, *arguments, **options)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "compile", compile_once)
        yield


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user with a home of their own: nothing of this machine's user gets in or is changed."""
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text("[user]\nname = A User\nemail = user@example.org\n")
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture(scope="session")
def bake(cookies_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Bake:
    """Bake with some answers, once per test session for the same answers, whichever of its workers asks."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "bakes"
    baked: dict[str, BakedProject] = {}

    def bake(**answers: str | bool) -> BakedProject:
        key = repr(sorted(known(answers).items()))
        if key not in baked:
            shared = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
            with one_at_a_time(shared):
                if not shared.exists():
                    # Not repr(result): it touches a deprecated attribute.
                    result = cookies_session.bake(extra_context=answers, template=str(ROOT))
                    assert result.exit_code == 0, f"{answers}: {result.exception!r}"
                    # The worker that has baked it may end first, and then removes its own.
                    draft = shared.with_suffix(".draft")
                    shutil.copytree(result.project_path, draft / result.project_path.name, symlinks=True)
                    (draft / "context.json").write_text(json.dumps(dict(result.context)))
                    draft.rename(shared)
            context = json.loads((shared / "context.json").read_text())
            (path,) = (file for file in shared.iterdir() if file.is_dir())
            baked[key] = BakedProject(path, context)
        return baked[key]

    return bake


@pytest.fixture(scope="session")
def install(bake: Bake, tmp_path_factory: pytest.TempPathFactory) -> Installer:
    """Install targets; the environments are those of this test session, for all its workers."""
    if "ENVIRONMENT_IS_HERE" in os.environ:
        return Installer(bake, None)
    own = tmp_path_factory.getbasetemp()
    return Installer(bake, (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "environments")


def bake_all(bake: Bake, answers: list[dict[str, Any]]) -> list[BakedProject]:
    """Bake them all; every other worker begins at the end, so that two do half of it each."""
    backwards = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    for each in answers[:: -1 if backwards else 1]:
        bake(**each)
    return [bake(**each) for each in answers]


@pytest.fixture(scope="session")
def full(bake: Bake) -> dict[Target, BakedProject]:
    """Every target with every file that an answer can add."""
    return dict(
        zip(TARGETS, bake_all(bake, [{**target._asdict(), **FULL} for target in TARGETS]), strict=True)
    )


@pytest.fixture(scope="session")
def bare(bake: Bake) -> dict[Target, BakedProject]:
    """Every target with the fewest files."""
    return dict(
        zip(TARGETS, bake_all(bake, [{**target._asdict(), **BARE} for target in TARGETS]), strict=True)
    )


@pytest.fixture(scope="session")
def projects(
    bake: Bake, full: dict[Target, BakedProject], bare: dict[Target, BakedProject]
) -> list[BakedProject]:
    """Every target with all files and with the fewest, and every pair of answers to the other questions."""
    questions = ("task", "tracker", "license")
    others: dict[str, list[Any]] = {name: QUESTIONS[name] for name in questions}
    others |= {name: [True, False] for name in ("use_docker", "use_github_actions", "use_notebook", "packs")}
    mixed = [
        # Any target will do; 5 and the number of targets share no factor, so each row gets another one.
        {**TARGETS[5 * number % len(TARGETS)]._asdict(), **SHORT, **dict.fromkeys(PACKS, packs), **answers}
        for number, answers in enumerate(pairwise(others))
        for packs in [answers.pop("packs")]
    ]
    return [*full.values(), *bare.values(), *bake_all(bake, mixed)]


@pytest.fixture
def refuse(
    cookies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refuse:
    """Bake with answers that must be refused with exit 1 and without a trace; return the sentence."""
    monkeypatch.chdir(tmp_path)

    def refuse(**answers: str | bool) -> str:
        capfd.readouterr()
        result = cookies.bake(extra_context=known(answers), template=str(ROOT))
        assert isinstance(result.exception, FailedHookException), f"{answers} were not refused"
        assert "exit status: 1" in str(result.exception)
        left = [path for path in tmp_path.rglob("*") if not path.name.startswith(("cookies", "bake"))]
        assert not left
        return the_sentence(capfd.readouterr().err)

    return refuse


def the_sentence(errors: str) -> str:
    """What the hook said, which is one sentence and nothing else."""
    assert errors.startswith("ddl-template: ") and errors.endswith(".\n") and errors.count("\n") == 1, errors
    return errors.removeprefix("ddl-template: ").removesuffix(".\n")


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[None]:
    """Two nodes on this machine, for the whole test session."""
    yield from _cluster(with_slurm=False)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[None]:
    """The same with a real Slurm on them."""
    yield from _cluster(with_slurm=True)


def _cluster(with_slurm: bool) -> Iterator[None]:
    was_up = cluster.STATE.exists()
    try:
        cluster.up(slurm=with_slurm)
    except cluster.Missing as missing:
        what, _, command = str(missing).partition(": ")
        missing_facility(what, command)
    yield
    if not was_up:
        cluster.down()


@pytest.fixture
def shell(tmp_path: Path, environment: dict[str, str]) -> Shell:
    """Run ``python -m …`` as a user would, in an empty folder."""

    def shell(*arguments: str | Path, cwd: Path = tmp_path, stdin: str = "") -> CompletedProcess[str]:
        return run(sys.executable, "-m", *arguments, cwd=cwd, env=environment, stdin=stdin)

    return shell


@pytest.fixture
def check(environment: dict[str, str], tmp_path: Path) -> Check:
    """Run a checker, away from the settings of this machine's user; it must find nothing."""

    def check(*command: str | Path) -> None:
        done = run(*command, cwd=tmp_path, env=environment)
        if done.returncode:
            # The same fault is in many projects, and the first few say it.
            pytest.fail((done.stdout + done.stderr)[:3000], pytrace=False)

    return check


@pytest.fixture(scope="session")
def template_repository(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The template as a git repository would hand it out: what is ignored by git is not in it."""
    repository = tmp_path_factory.mktemp("repository") / "ddl-template.git"
    repository.mkdir()
    copy_template(repository)
    git(repository, environment, "init", "-q", "-b", "main")
    commit_all(repository, environment)
    return repository


def copy_template(folder: Path) -> None:
    """Copy what cookiecutter reads."""
    for path in [ROOT / ".gitignore", ROOT / "cookiecutter.json"]:
        shutil.copy(path, folder)
    for path in [ROOT / "hooks", *ROOT.glob("{{*}}")]:
        shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))


def git(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    """Run git as the user of the tests; return what it printed."""
    done = run("git", *arguments, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit_all(folder: Path, environment: dict[str, str]) -> str:
    """Commit everything in the folder; return the commit."""
    git(folder, environment, "add", "-A")
    git(folder, environment, "commit", "-q", "-m", "All")
    return git(folder, environment, "rev-parse", "HEAD").strip()
