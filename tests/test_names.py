"""Whatever people type as a name gives a working project or one sentence, and is never run."""

import functools
import json
import keyword
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli
from baking import ROOT, BakedProject, assert_parses
from conftest import Refuse, the_sentence
from cookiecutter import environment, exceptions, generate, main, prompt  # type: ignore[import-untyped]
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

Judge = Callable[[dict[str, Any]], str | None]

# Answers, and the question under which they are refused, if they are.
NAMES: list[tuple[dict[str, str], str | None]] = [
    ({"project_name": 'He said "hi"'}, None),
    ({"project_name": "$(touch pwned)"}, None),
    ({"project_name": "`touch pwned`; touch pwned"}, None),
    ({"project_name": "Größe 数据 🚀"}, None),
    ({"project_name": "2 torch x"}, None),
    ({"project_name": "x" * 200}, None),
    ({"project_name": ""}, "project_name"),
    ({"project_name": "line\nbreak"}, "project_name"),
    ({"project_name": "\ud800 half a character"}, "project_name"),
    ({"project_name": "🚀"}, "project_slug"),
    ({"project_name": "torch"}, "project_slug"),
    ({"package_name": "test"}, "package_name"),
    ({"project_name": "json"}, "package_name"),
    ({"project_name": "class"}, "package_name"),
    ({"project_slug": "My_Project-2"}, None),
    ({"project_slug": "a/b"}, "project_slug"),
    ({"project_slug": ".."}, "project_slug"),
    ({"project_slug": "-rf"}, "project_slug"),
    ({"project_slug": "/tmp/absolute"}, "project_slug"),
    ({"project_slug": "x" * 41}, "project_slug"),
    ({"project_slug": "PyTorch-Ignite"}, "project_slug"),
    ({"project_slug": "CON"}, "project_slug"),
    ({"package_name": "lpt9"}, "package_name"),
    ({"package_name": "x"}, None),
    ({"package_name": "x" * 40}, None),
    ({"package_name": "x" * 41}, "package_name"),
    ({"package_name": "2x"}, "package_name"),
    ({"package_name": "a-b"}, "package_name"),
    ({"package_name": "Übung"}, "package_name"),
    ({"package_name": "match"}, "package_name"),
    ({"author_name": 'Ann "The Boss" O\'Neill \\'}, None),
    ({"author_name": " "}, "author_name"),
    ({"author_name": "a\u2028b"}, "author_name"),
    ({"description": ""}, None),
    ({"description": "key: [value] {braces} %s # <b>&amp;</b> | *"}, None),
    ({"description": '"""; import os; os.system("touch pwned") #'}, None),
    ({"description": "tab\tbed"}, "description"),
]
# Modules that an installed project imports, directly or through its requirements. The first copy on the path wins,
# so a project of the same name could not be started.
IMPORTED = """
contourpy cycler dateutil docstring_parser filelock fsspec functorch ignite jinja2 joblib jsonargparse kiwisolver
markdown_it markupsafe matplotlib mdurl mpmath networkx numpy packaging pygments pyparsing pytest rich scipy sklearn
sympy tensorboard test threadpoolctl torch torchgen torchvision typeshed_client typing_extensions yaml
"""
TEXTS = [text for answers, _ in NAMES for text in answers.values()]
TEXT = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(codec="ascii"), max_size=60),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3).map("".join),
)
WORD = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,45}", fullmatch=True)
ANSWERS = st.fixed_dictionaries(
    {"project_name": TEXT},
    optional={
        "project_slug": TEXT | WORD,
        "package_name": TEXT | WORD,
        "author_name": TEXT,
        "description": TEXT,
    },
)


@pytest.fixture(scope="session")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """cookiecutter() with a home of its own."""
    folder = tmp_path_factory.mktemp("config")
    config = {key: str(folder / key) for key in ("cookiecutters_dir", "replay_dir")}
    (folder / "config").write_text(json.dumps(config))
    return functools.partial(main.cookiecutter, str(ROOT), config_file=str(folder / "config"))


def resolved(answers: dict[str, str]) -> dict[str, Any]:
    """The answers as the hooks get them: derived values computed, no file rendered yet."""
    context = generate.generate_context(str(ROOT / "cookiecutter.json"), extra_context=answers)
    return dict(prompt.prompt_for_config(context, no_input=True))


@pytest.fixture(scope="session")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """The hook's own judgement, in this process: hundreds of names in the time of a few bakes."""
    source = (ROOT / "hooks/pre_gen_project.py").read_text(encoding="utf-8")
    context = {"cookiecutter": resolved({})}
    hook = tmp_path_factory.mktemp("hook") / "pre_gen_project.py"
    hook.write_text(environment.StrictEnvironment(context=context).from_string(source).render(context))
    judge: Judge = runpy.run_path(str(hook))["refusal"]
    return judge


def without_jinja(answers: dict[str, str]) -> bool:
    """Cookiecutter itself renders what it is given at once; what is typed or replayed reaches us raw."""
    return not any(mark in text for text in answers.values() for mark in ("{{", "{%", "{#"))


@pytest.mark.parametrize(("answers", "refused"), NAMES, ids=lambda value: ascii(value)[:50])
def test_a_name_is_refused_under_its_own_question_with_a_fix_that_works(
    refusal: Judge, answers: dict[str, str], refused: str | None
) -> None:
    sentence = refusal(resolved(answers))
    assert (sentence and sentence.split()[0]) == refused
    if sentence and (fix := re.search(r"(?:choose|example) (\w+)=(\S+)$", sentence)):
        assert refusal(resolved(answers | {fix[1]: fix[2]})) is None


def test_no_package_may_shadow_what_the_project_imports(refusal: Judge) -> None:
    assert [name for name in IMPORTED.split() if not refusal(resolved({"package_name": name}))] == []


@pytest.mark.parametrize("name", ["src", "configs", "conftest", "own_steps", "test_step", "test_studies"])
def test_no_package_may_be_shadowed_by_a_file_of_the_project(refuse: Refuse, name: str) -> None:
    sentence = refuse(package_name=name, use_studies=True)
    assert sentence.endswith(f"would shadow a file of the project: choose package_name={name}_project")


@given(ANSWERS)
@settings(max_examples=200)
def test_any_names_are_either_sound_or_refused_in_one_line(refusal: Judge, answers: dict[str, str]) -> None:
    assume(without_jinja(answers))
    context = resolved(answers)
    sentence = refusal(context)
    if sentence is not None:
        assert re.fullmatch(r"[ -~]+", sentence), "one line, safe on every terminal"
        assert re.match(r"(project_name|project_slug|package_name|author_name|description) ", sentence)
        return
    slug, package = context["project_slug"], context["package_name"]
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?", slug) and len(slug) <= 40
    assert re.fullmatch(r"[a-z][a-z0-9_]*", package) and len(package) <= 40
    assert not keyword.iskeyword(package) and package not in sys.stdlib_module_names
    for key in ("author_name", "description"):
        toml = tomli.loads(f'text = "{context["__" + key.removesuffix("_name") + "_toml"]}"')
        assert toml["text"] == context[key]


@given(ANSWERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    {"project_name": "$(touch pwned)", "author_name": "`touch pwned`", "description": "'; touch pwned; '"}
)
@example({"project_name": '"""', "project_slug": "a", "package_name": "a", "author_name": '"""\\'})
@example({"project_name": "Größe 数据 🚀", "author_name": "key: value # comment", "description": "- item"})
@example({"project_name": "x" * 200, "author_name": "y" * 200, "description": "z " * 100})
@example({"project_name": "2 torch x", "author_name": "<b>&amp;</b>", "description": ""})
def test_any_names_bake_files_that_parse_or_leave_nothing(
    render: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answers: dict[str, str],
) -> None:
    assume(without_jinja(answers))
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    capfd.readouterr()
    try:
        path = render(no_input=True, extra_context=answers, output_dir="out")
    except exceptions.FailedHookException:
        the_sentence(capfd.readouterr().err)
        assert [path.name for path in here.rglob("*")] == ["out"]
        return
    project = BakedProject(Path(path), resolved(answers))
    assert [path.relative_to(here) for path in here.glob("*/*")] == [
        Path("out", project.answers["project_slug"])
    ]
    assert not list(here.rglob("pwned"))
    for name in project.files():
        assert_parses(name, project.read(name))
    metadata = tomli.loads(project.read("pyproject.toml"))["project"]
    assert metadata["name"] == project.answers["project_slug"]
    assert metadata["authors"] == [{"name": project.answers["author_name"]}]
    assert metadata["description"] == project.answers["description"]
    stored = json.loads(project.read(".ddl-template.json"))["default_context"]
    assert {key: stored[key] for key in answers} == {key: project.answers[key] for key in answers}


@pytest.mark.parametrize("question", ["project_name", "author_name", "description", "project_slug"])
@pytest.mark.parametrize("text", ["{{ cookiecutter }}", "{% raw %}", "{# note #}", "a }} b", "a\r\nb"])
def test_a_raw_text_that_reaches_the_hook_is_refused(
    render: Callable[..., str], question: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Typed at a prompt or replayed from a file, a text is not rendered by cookiecutter.
    replay = tmp_path / "answers.json"
    replay.write_text(json.dumps({"cookiecutter": resolved({}) | {question: text}}))
    with pytest.raises(exceptions.FailedHookException):
        render(replay=str(replay), output_dir=str(tmp_path))
    assert the_sentence(capfd.readouterr().err).startswith(question)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.json"]


def test_a_slug_that_is_a_path_touches_nothing_outside_the_folder(refuse: Refuse, tmp_path: Path) -> None:
    victim = tmp_path / "bake-victim"
    victim.mkdir()
    for slug in (str(victim), "../../bake-victim", "..", "."):
        assert refuse(project_slug=slug).startswith("project_slug")
    assert victim.is_dir()
