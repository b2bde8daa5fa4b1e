"""Lay what the answers add over the project, then say the next commands. Needs no network and installs nothing.

choices/QUESTION/ANSWER/ holds what one answer adds, each file at its final path. Two names in it are reserved:
parts/ holds pieces that README.md and the like include, and with/QUESTION/ANSWER/ what two answers add together.
At last, .cruft.json keeps which version of the template this was, so that the project can be updated.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ANSWERS = json.loads({{cookiecutter | jsonify | jsonify}})
CHOICES = Path("choices")
RESERVED = ("parts", "with")


def answer(question: str) -> str:
    """Return what was chosen; what "auto" stands for is kept under a private name."""
    chosen = ANSWERS.get(f"__{question}", ANSWERS.get(question))
    return str(chosen).lower() if isinstance(chosen, bool) else str(chosen)


def names(question: str) -> list[str]:
    """Return the name of the answer's folder, after those of the bases that it shares with other answers."""
    chosen = answer(question)
    bases = ANSWERS["_bases"].get(question, {}).get(chosen, [])
    return [*([bases] if isinstance(bases, str) else bases), chosen]


def chosen_folders() -> Iterator[Path]:
    """Yield the folders of every answer; not all of them need exist."""
    for question in sorted(folder.name for folder in CHOICES.iterdir()):
        for name in names(question):
            yield from with_others(CHOICES / question / name)


def with_others(folder: Path) -> Iterator[Path]:
    """Yield the folder of an answer, and those inside it of the answers that were given to other questions."""
    yield folder
    for pair in sorted(folder.glob("with/*/*")):
        if pair.name in names(pair.parent.name):
            yield from with_others(pair)


def lay(folder: Path, laid: set[Path]) -> None:
    """Move the files of one folder to where they belong in the project, and add these to ``laid``.

    A file of every project may be replaced, such as step.py by a task. So is one of an earlier project: whoever bakes over
    it has asked for that (--overwrite-if-exists).
    """
    for source in sorted(folder.rglob("*")):
        path = source.relative_to(folder)
        if source.is_dir() or path.parts[0] in RESERVED:
            continue
        if path in laid:
            sys.exit(f"ddl-template: {source} would replace {path}, which another choice brings too.")
        path.parent.mkdir(parents=True, exist_ok=True)
        source.replace(path)
        laid.add(path)


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git says in a folder; None where it fails or is not installed."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def template_folder() -> Path | None:
    """Return where the template lies. A relative path begins where it was typed, which cookiecutter does not tell."""
    for start in (os.environ.get("PWD", ""), ANSWERS["_output_dir"]):
        folder = Path(start, ANSWERS["_repo_dir"])
        if folder.is_absolute() and (folder / "cookiecutter.json").is_file():
            return folder
    return None


def version_of_the_template() -> dict[str, Any] | None:
    """Return what cruft keeps of a template and its answers; None unless a commit holds all that was rendered."""
    # cruft itself renders without a folder, from a commit of its choice, and then writes the file.
    if "_repo_dir" not in ANSWERS or "_commit" in ANSWERS or not (folder := template_folder()):
        return None
    # In a folder of some other repository, a second line names that folder.
    commit = git(folder, "rev-parse", "HEAD", "--show-prefix")
    changes = git(folder, "status", "--porcelain", "--", "hooks", "*cookiecutter.*")
    if not commit or "\n" in commit or changes != "":
        return None
    template: str | None = str(folder.resolve())
    if ANSWERS["_repo_dir"] != ANSWERS["_template"]:
        # cookiecutter has cloned a URL, or what gh: stands for.
        template = git(folder, "remote", "get-url", "origin")
    if not template:
        return None
    # A password in it is not for others to read.
    template = re.sub("^(https?://)[^/@]*@", r"\1", template)
    questions = json.loads((folder / "cookiecutter.json").read_text(encoding="utf-8"))
    # The hook gets everything sorted, and cruft writes it in the template's own order.
    context = {
        key: value if value == ANSWERS[key] else ANSWERS[key]
        for key, value in questions.items()
        if key in ANSWERS
    }
    return {
        "template": template,
        "commit": commit,
        "checkout": ANSWERS["_checkout"],
        "context": {"cookiecutter": context | {"_template": template, "_commit": commit}},
        "directory": None,
    }


if __name__ == "__main__":
    laid: set[Path] = set()
    for chosen in chosen_folders():
        lay(chosen, laid)
    shutil.rmtree(CHOICES)
    # Python finds these before the package, in the project's folder and in its tests.
    package = ANSWERS["package_name"]
    if package in {path.name.removesuffix(".py") for path in (*Path().iterdir(), *Path("tests").glob("*"))}:
        sys.exit(
            f"ddl-template: package_name {package} would shadow a file of the project: choose package_name={package}_project."
        )
    if version := version_of_the_template():
        text = json.dumps(version, ensure_ascii=False, indent=2) + "\n"
        Path(".cruft.json").write_text(text, encoding="utf-8")
    else:
        # Of an earlier project, over which this one is rendered.
        Path(".cruft.json").unlink(missing_ok=True)

    backend, launcher, slug = answer("backend"), answer("launcher"), ANSWERS["project_slug"]
    # What README.md has to say before the first command, and what follows the installation.
    before = next(
        (ANSWERS["_before"][name] for name in (backend, launcher) if name in ANSWERS["_before"]), ""
    )
    installs = [
        ANSWERS["_install"][name] for name in (backend, answer("tracker")) if name in ANSWERS["_install"]
    ]
    lines = [f'cd {slug} && python3 -m pip install -e ".[dev]"', *installs, "scripts/train.sh"]
    print(
        f"\n{slug} is ready ({answer('hardware')}, {backend}, {launcher}). "
        f"{f'It requires {before}: see README.md. Then:' if before else 'Next:'}\n"
    )
    print("".join(f"  {line}\n" for line in lines))
