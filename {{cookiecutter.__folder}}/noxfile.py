"""What keeps this project in order: ``nox`` runs the formatter, the linter, the type checker and the tests."""

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"

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
