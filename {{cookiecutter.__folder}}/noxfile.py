"""What keeps this project in order: ``nox`` runs the formatter, the linter, the type checker and the tests."""

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"

# The checks run on the CPU: with uv, spare them what torch brings for other devices.
if "UV_FIND_LINKS" not in os.environ:
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
