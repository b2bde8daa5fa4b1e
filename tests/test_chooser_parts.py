"""How the chooser takes projects apart: made-up files that depend on answers in every way that a file may."""

import random
from collections.abc import Callable

import pytest
from answers import CHOICES, Answers, Project, combinations, drawn, possible_targets
from baking import COMBINATIONS, SUPPORT, TARGETS, Target
from parts import MOST_COMBINATIONS, Guess, keys, put_together

Write = Callable[[Answers], str]
SOME = 600
OTHERS = 300


def projects(write: Write, number: int, seed: int) -> list[Project]:
    """Projects of one file, as ``write`` writes it."""
    chance = random.Random(seed)
    drawings = [drawn(chance, {}) for _ in range(number)]
    return [
        Project(known, {"file": text} if (text := write(known)) else {}, frozenset()) for known in drawings
    ]


def page_of_a_target(known: Answers) -> str:
    return "".join(f"{known[name]}\n" for name in ("hardware", "__backend", "__launcher"))


def optional(known: Answers) -> str:
    return "a file\n" if known["use_docker"] == "true" and known["tracker"] != "none" else ""


def readme(known: Answers) -> str:
    """Lines that depend on several questions, optional ones with an empty line before them, and lines that repeat."""
    tracker = "" if known["tracker"] == "none" else f"\n## Tracker\n\n```\n{known['tracker']}\n```\n"
    notebook = "\n```\nnotebook\n```\n" if known["use_notebook"] == "true" else ""
    install = f"{known['__backend']} and {known['tracker']}\n"
    return f"# Title\n\n{page_of_a_target(known)}{install}{tracker}\n{known['task']}\n{notebook}\n```\nend\n```\n"


def stored_answers(known: Answers) -> str:
    return "".join(f"{name}: {known[name]}\n" for name in CHOICES)


@pytest.mark.parametrize("write", [page_of_a_target, optional, readme, stored_answers])
def test_parts_of_some_projects_put_others_together(write: Write) -> None:
    guess = Guess(projects(write, SOME, seed=0))
    # What no project has told is known to be missing; all else is right.
    missing = guess.unseen()
    for project in projects(write, OTHERS, seed=1):
        if not any(answers.items() <= project.features.items() for answers in missing):
            assert put_together(guess.files, project.features) == project.files


def test_a_file_depends_on_nothing_that_it_does_not_hold() -> None:
    (part,) = Guess(projects(lambda known: known["task"] + "\n", SOME, seed=0)).files["file"]
    assert part.questions == ("task",) and len(part.texts) == len(CHOICES["task"])


def test_a_line_that_depends_on_too_many_questions_is_refused() -> None:
    names = ("task", "tracker", "license", "use_docker", "launcher")
    with pytest.raises(ValueError, match=r"file: more than \d questions, or \d+ combinations"):
        Guess(projects(lambda known: " ".join(known[name] for name in names), SOME, seed=0))


def test_what_no_project_has_told_is_missing() -> None:
    many = projects(page_of_a_target, 3 * SOME, seed=0)
    known = [project for project in many if project.features["__launcher"] != "kubernetes"]
    missing = Guess(known).unseen()
    assert {answers["__launcher"] for answers in missing} == {"kubernetes"}
    assert len(missing) == len([target for target in TARGETS if target.launcher == "kubernetes"])


def test_targets_are_those_that_the_hook_renders() -> None:
    judged = {
        Target(*(row.features[name] for name in Target._fields)): row
        for row in combinations()
        if "auto" not in row.features.values()
    }
    assert judged.keys() == {*COMBINATIONS}
    assert {target for target, row in judged.items() if row.why is None} == {*TARGETS}
    for target, row in judged.items():
        if row.why:
            assert row.why in {refusal["why"] for refusal in SUPPORT[target.backend]["refused"].values()}
            assert Target(**row.nearest) in TARGETS
    assert len(keys(("hardware", "__backend", "__launcher"))) == len(TARGETS) < len(possible_targets())
    assert len(keys(("hardware", "backend", "launcher"))) == len(possible_targets()) <= MOST_COMBINATIONS
