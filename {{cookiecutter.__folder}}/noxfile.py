"""What keeps this project in order: ``nox`` runs the formatter, the linter, the type checker and the tests.

``nox -s update`` updates it to the newest version of its template: docs/how-do-i.md.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]

# uv looks where pip is told to look; otherwise it takes torch for the CPU, which is enough for the checks.
SOURCES = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS"}
for of_pip, of_uv in SOURCES.items():
    if of_pip in os.environ:
        os.environ.setdefault(of_uv, os.environ[of_pip])
if not os.environ.keys() & SOURCES.values():
    os.environ.setdefault("UV_TORCH_BACKEND", "cpu")


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, style, types."""
    session.install("-e", ".[dev]")
    session.run("ruff", "format", "--check")
    session.run("ruff", "check")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- go to pytest."""
    session.install("-e", ".[dev]")
    # What pip cannot install by itself.
    for script in Path("scripts").glob("install_*.sh"):
        session.run(str(script), external=True)
    session.run("pytest", *session.posargs)


@nox.session
def update(session: nox.Session) -> None:
    """Update to the newest version of the template; QUESTION=ANSWER after -- changes answers: docs/how-do-i.md."""

    def git(*arguments: str) -> list[str]:
        quietly = session.run("git", *arguments, external=True, silent=True, log=False, success_codes=[0, 128])
        return str(quietly).splitlines()

    answers = dict(argument.partition("=")[::2] for argument in session.posargs)
    checkout = ["--checkout", answers.pop("checkout")] if "checkout" in answers else []
    if not Path(".cruft.json").is_file():
        session.error("There is no .cruft.json, which names the template: docs/how-do-i.md shows how to create it")
    if git("rev-parse", "--is-inside-work-tree") != ["true"]:
        session.error("No git repository holds this project: git init && git add -A && git commit -m Rendered")
    if git("ls-files", ".cruft.json") != [".cruft.json"]:
        session.error("The repository does not hold .cruft.json: git add .cruft.json && git commit -m Link")
    if git("status", "--porcelain"):
        session.error("There are changes that are not committed: commit or stash them before an update adds its own")
    known = json.loads(Path(".cruft.json").read_text(encoding="utf-8"))["context"]["cookiecutter"]
    questions = [question for question in known if not question.startswith("_")]
    if unknown := sorted(answers.keys() - questions):
        session.error(f"{unknown[0]} is not a question of the template: choose from {', '.join(questions)}, checkout")

    session.install("cruft>=2.16,<3")
    command = [f"{session.bin}/cruft", "update", "--skip-apply-ask", "--variables-to-update", json.dumps(answers)]
    environment = {**os.environ, "_TYPER_STANDARD_TRACEBACK": "1", "LC_ALL": "C"}
    done = subprocess.run([*command, *checkout], check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        # What the template says, or the exception for what is no answer, no repository or no version of it.
        said = r"^(?:ddl-template: .+|(?:ValueError|cruft\.exceptions\.\w+): [\s\S]+)"
        refused = re.search(said, done.stderr, re.MULTILINE)
        session.error(refused[0].partition(": ")[2].strip(" .\n") if refused else done.stderr)

    # Where git could not even write what it rejects: an edited file is to go, or one of yours is in the way.
    left = r"^error: (.+): (?:patch does not apply|already exists in .+)$"
    conflicts = re.findall(left, done.stderr, re.MULTILINE)
    conflicts += git("diff", "--name-only", "--relative", "--diff-filter=U")
    conflicts += [name[: -len(".rej")] for name in git("ls-files", "--others", "--exclude-standard", "*.rej")]
    if conflicts:
        files = ", ".join(sorted({*conflicts}))
        session.error(f"Updated, but your edits conflict in {files}: docs/how-do-i.md shows how to resolve them")
    changed = git("status", "--porcelain")
    session.log("Updated: read git diff HEAD, run nox, then commit" if changed else "This is the newest version")
