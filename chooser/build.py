"""Build the chooser, a page of HTML that needs neither a service nor a network: python chooser/build.py [PAGE]

Projects are rendered and taken apart (parts.py), until the parts put together other projects, which were not taken apart,
byte for byte. They and the bundled scripts are then written into page.html.
"""

import base64
import gzip
import json
import random
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from string import Template
from typing import Any

from answers import (
    CHOICES,
    DEFAULTS,
    ROOT,
    TABLES,
    TARGET,
    Answers,
    Project,
    bake,
    be_quiet,
    combinations,
    drawn,
    possible_targets,
)
from bundle import bundle
from parts import Files, Guess, put_together

HERE = Path(__file__).parent
# In each round: projects, drawn at random, that the guess has not seen.
UNSEEN = 48
MOST_ROUNDS = 8


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/chooser.html"
    script, licenses = bundle()
    frame = Template((HERE / "page.html").read_text(encoding="utf-8"))
    text = frame.substitute(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        licenses=licenses,
        data=base64.b64encode(gzip.compress(json.dumps(data()).encode(), mtime=0)).decode(),
        script=script,
    )
    page.write_text(text, encoding="utf-8")
    print(f"{page}: {len(text.encode()) / 1e6:.2f} MB")


def data() -> dict[str, Any]:
    """What the page knows: questions, which targets are refused and why, and the parts of every file."""
    files, executable = take_apart()
    texts: dict[str, int] = {}
    return {
        "template": TABLES["_template_source"],
        "version": TABLES["_template_version"],
        "questions": [question(name) for name in CHOICES],
        "target": TARGET,
        "combinations": [combination._asdict() for combination in combinations()],
        "files": [
            {
                "name": name,
                "executable": name in executable,
                "parts": [
                    {
                        "questions": part.questions,
                        "texts": {
                            " ".join(answers): texts.setdefault(text, len(texts))
                            for answers, text in part.texts.items()
                        },
                    }
                    for part in parts
                ],
            }
            for name, parts in files.items()
        ],
        "texts": [*texts],
    }


def question(name: str) -> dict[str, Any]:
    """A question in the words of cookiecutter.json."""
    said = TABLES["__prompts__"][name]
    labels = said if isinstance(said, dict) else {"__prompt__": said}
    answers = [{"value": value, "label": labels.get(value, "")} for value in CHOICES[name]]
    return {"name": name, "prompt": labels["__prompt__"], "default": DEFAULTS[name], "answers": answers}


def take_apart() -> tuple[Files, set[str]]:
    """Return the parts of every file, and the names of those that can be executed."""
    chance = random.Random(0)
    projects: list[Project] = []
    with ProcessPoolExecutor(initializer=be_quiet) as pool:
        first = every_target_twice(chance)
        first += [drawn(chance, {}) for _ in first]
        # What most people look at must be right, whatever the others let one guess.
        first += [{**DEFAULTS, **target} for target in possible_targets() if "auto" not in target.values()]
        fresh = list(pool.map(bake, first))
        for _ in range(MOST_ROUNDS):
            projects += fresh
            guess = Guess(projects)
            wanted = [*covering(guess.unseen(), chance), *(drawn(chance, {}) for _ in range(UNSEEN))]
            fresh = list(pool.map(bake, wanted))
            wrong = [
                project for project in fresh if put_together(guess.files, project.features) != project.files
            ]
            print(f"{len(projects)} projects put together {len(fresh) - len(wrong)} of {len(fresh)} others")
            if not wrong:
                return guess.files, executable([*projects, *fresh])
    raise SystemExit(f"After {MOST_ROUNDS} rounds, {wrong[0].features} is still not put together rightly.")


def every_target_twice(chance: random.Random) -> list[Answers]:
    """Draw two projects of every target: where one has a yes, the other has a no."""
    opposite = {"true": "false", "false": "true"}
    targets = [target for target in possible_targets() if "auto" not in target.values()]
    drawings = [drawn(chance, target) for target in targets]
    return drawings + [
        {
            **drawn(chance, target),
            **{name: opposite[value] for name, value in first.items() if value in opposite},
        }
        for target, first in zip(targets, drawings, strict=True)
    ]


def covering(combinations: Iterable[Answers], chance: random.Random) -> list[Answers]:
    """Draw projects so that each of these combinations of answers is in one of them."""
    projects: list[Answers] = []
    for combination in combinations:
        if not any(combination.items() <= project.items() for project in projects):
            projects.append(drawn(chance, combination))
    return projects


def executable(projects: Iterable[Project]) -> set[str]:
    """Return the files that can be executed, in every project that has them."""
    projects = list(projects)
    found = {name for project in projects for name in project.executable}
    for project in projects:
        assert project.executable == found & project.files.keys(), (
            "a file can be executed in some projects only"
        )
    return found


if __name__ == "__main__":
    main()
