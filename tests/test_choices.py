"""An answer is a folder: every folder in choices/ has its answer, every piece its includer, and the hook lays them."""

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from baking import CONTEXT, QUESTIONS, ROOT, BakedProject, run
from cookiecutter import environment  # type: ignore[import-untyped]

(PROJECT,) = ROOT.glob("{{*}}")
CHOICES = PROJECT / "choices"
HOOK = ROOT / "hooks/post_gen_project.py"
BASES: dict[str, dict[str, str | list[str]]] = CONTEXT["_bases"]
STATEMENT = re.compile(r"\{%.*?%\}", re.DOTALL)
INCLUDE = re.compile(r"\{%-? include (?P<what>.+?)(?P<optional> ignore missing)? -?%\}")
MOST_INCLUDES = 40
# What has no folder, because it adds nothing.
NOTHING = ("auto", "none", "false")
Lay = Callable[..., CompletedProcess[str]]
Chosen = Callable[[BakedProject], list[Path]]


def texts() -> Iterator[tuple[str, str]]:
    """Yield path and text of every file of the project, in choices/ or not."""
    for path in sorted(PROJECT.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(PROJECT).as_posix(), path.read_text(encoding="utf-8")


def pieces() -> set[Path]:
    return {path for path in CHOICES.glob("**/parts/*") if path.is_file()}


def rendered_hook(context: dict[str, Any], folder: Path) -> Path:
    context = {"cookiecutter": context}
    source = HOOK.read_text(encoding="utf-8")
    hook = folder / HOOK.name
    hook.write_text(environment.StrictEnvironment(context=context).from_string(source).render(context))
    return hook


@pytest.fixture(scope="session")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Chosen:
    """Which folders the hook lays over a project, by the hook's own rule."""
    hook = runpy.run_path(str(rendered_hook({}, tmp_path_factory.mktemp("hook"))))
    known = hook["chosen_folders"].__globals__

    def chosen(project: BakedProject) -> list[Path]:
        known.update(ANSWERS=project.answers, CHOICES=CHOICES)
        return list(hook["chosen_folders"]())

    return chosen


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """Run the hook over a made-up tree of files, with made-up answers."""

    def lay(files: dict[str, str], **answers: str | bool) -> CompletedProcess[str]:
        project = tmp_path / "project"
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        context: dict[str, Any] = {"_before": {}, "_install": {}, "_bases": {"backend": {"gloo": "torch"}}}
        context |= {
            "project_slug": "project",
            "package_name": "package",
            "hardware": "cpu",
            "__backend": "gloo",
            "__launcher": "spawn",
            "tracker": "none",
        }
        return run(sys.executable, rendered_hook({**context, **answers}, tmp_path), cwd=project)

    return lay


# Statements ---------------------------------------------------------------------------------------------------


def test_source_scripts_and_settings_hold_no_statement() -> None:
    plain = re.compile(r"(.*/)?(src|scripts|configs|tests)/.*")
    found = [name for name, text in texts() if plain.fullmatch(name) and STATEMENT.search(text)]
    assert found == []


def test_the_only_statements_elsewhere_are_a_few_includes() -> None:
    others = re.compile(r"(?!(.*/)?(src|scripts|configs|tests)/).*")
    found = [(name, hit[0]) for name, text in texts() for hit in STATEMENT.finditer(text)]
    found = [(name, statement) for name, statement in found if others.fullmatch(name)]
    assert [pair for pair in found if not INCLUDE.fullmatch(pair[1])] == []
    assert len(found) <= MOST_INCLUDES
    assert "{%" not in (ROOT / "cookiecutter.json").read_text(encoding="utf-8")


# Folders ------------------------------------------------------------------------------------------------------


def answers_of(question: str, projects: list[BakedProject]) -> set[str]:
    """What can be answered to a question, or follows from other answers."""
    choices = QUESTIONS.get(question, [project.answers.get(f"__{question}") for project in projects])
    return {"true", "false"} if isinstance(choices, bool) else {*choices}


def bases_of(question: str) -> set[str]:
    """Return the folders that answers of a question share."""
    bases = BASES.get(question, {}).values()
    return {name for base in bases for name in ([base] if isinstance(base, str) else base)}


def test_every_folder_belongs_to_an_answer_or_is_a_base_of_some(projects: list[BakedProject]) -> None:
    for folder in [*CHOICES.glob("*/*"), *CHOICES.glob("**/with/*/*")]:
        question, answer = folder.parts[-2:]
        answers = answers_of(question, projects) | bases_of(question)
        assert answer in answers, f"{folder.relative_to(CHOICES)} belongs to no answer"


@pytest.mark.parametrize(
    "question", [name for name, choice in QUESTIONS.items() if not isinstance(choice, str)]
)
def test_every_answer_that_adds_something_has_its_folder(question: str, projects: list[BakedProject]) -> None:
    for answer in answers_of(question, projects) - {*NOTHING}:
        assert (CHOICES / question / answer).is_dir(), f"choices/{question}/{answer} is missing"


def test_every_base_is_shared_by_answers(projects: list[BakedProject]) -> None:
    for question, bases in BASES.items():
        assert bases.keys() <= answers_of(question, projects)


def test_every_file_and_every_piece_reaches_some_project(
    projects: list[BakedProject], chosen: Chosen
) -> None:
    expressions = environment.StrictEnvironment(context={"cookiecutter": {}})
    includes = [(name, hit) for name, text in texts() for hit in INCLUDE.finditer(text)]
    reached: set[Path] = set()
    for project in projects:
        own = ((folder, path) for folder in chosen(project) for path in folder.rglob("*") if path.is_file())
        here = {path for folder, path in own if path.relative_to(folder).parts[0] not in ("parts", "with")}
        reached |= here
        for name, include in includes:
            if name.startswith("choices/") and PROJECT / name not in here:
                continue
            wanted = expressions.compile_expression(include["what"])(cookiecutter=project.answers)
            wanted = [wanted] if isinstance(wanted, str) else wanted
            found = next((PROJECT / path for path in wanted if (PROJECT / path).is_file()), None)
            assert found or include["optional"], f"{name} of {project} includes {wanted}"
            reached |= {found} if found else set()
    files = {path for path in CHOICES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert sorted(path.relative_to(CHOICES).as_posix() for path in files - reached) == []
    assert pieces() <= reached


# The hook -----------------------------------------------------------------------------------------------------


def test_choices_never_survive_a_bake(projects: list[BakedProject]) -> None:
    assert [project for project in projects if (project.path / "choices").exists()] == []


def test_the_chosen_folders_are_laid_over_the_project_and_nothing_else(lay: Lay, tmp_path: Path) -> None:
    done = lay(
        {
            "README.md": "common",
            "choices/backend/torch/src/backend.py": "the base",
            "choices/backend/torch/with/launcher/spawn/src/spawner.py": "a pair of the base",
            "choices/backend/gloo/src/transport.py": "the answer",
            "choices/backend/gloo/parts/train.md": "a piece",
            "choices/backend/gloo/with/use_docker/true/docker.md": "a pair",
            "choices/backend/gloo/with/launcher/slurm/slurm.md": "another pair",
            "choices/backend/mpi/src/transport.py": "another answer",
            "choices/use_docker/true/Dockerfile": "a yes",
            "choices/use_docker/false/none": "a no",
        },
        use_docker=True,
    )
    assert done.returncode == 0, done.stderr
    project = tmp_path / "project"
    laid = {
        path.relative_to(project).as_posix(): path.read_text()
        for path in project.rglob("*")
        if path.is_file()
    }
    assert laid == {
        "README.md": "common",
        "src/backend.py": "the base",
        "src/spawner.py": "a pair of the base",
        "src/transport.py": "the answer",
        "docker.md": "a pair",
        "Dockerfile": "a yes",
    }
    assert not (project / "choices").exists()


@pytest.mark.parametrize(
    "other", ["choices/backend/torch/docs/page.md", "choices/launcher/spawn/docs/page.md"]
)
def test_two_sources_for_one_path_are_refused(lay: Lay, other: str) -> None:
    done = lay({"choices/backend/gloo/docs/page.md": "one", other: "two"})
    assert done.returncode == 1
    assert re.fullmatch(
        r"ddl-template: choices/\S+ would replace docs/page\.md, which another choice brings too\.\n",
        done.stderr,
    )


def test_a_project_is_baked_over_an_earlier_one(tmp_path: Path) -> None:
    options = ("--no-input", "--overwrite-if-exists", "--output-dir", tmp_path, ROOT)
    project = tmp_path / "my-ddl-project"
    page = project / "docs" / "torchrun.md"
    baked = []
    for _ in range(2):
        done = run(sys.executable, "-m", "cookiecutter", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        baked.append(page.read_text())
        page.write_text("of an earlier version")
    assert baked[0] == baked[1]
    assert not (project / "choices").exists()


def test_the_stored_answers_hold_every_question_and_nothing_else(projects: list[BakedProject]) -> None:
    for project in projects:
        stored = json.loads(project.read(".ddl-template.json"))["default_context"]
        assert stored == {question: project.answers[question] for question in QUESTIONS}
