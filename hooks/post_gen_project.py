"""Lay what the answers add over the project, then say the next commands. Needs no network and installs nothing.

choices/QUESTION/ANSWER/ holds what one answer adds, each file at its final path. Two names in it are reserved:
parts/ holds pieces that README.md and the like include, and with/QUESTION/ANSWER/ what two answers add together.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ANSWERS = json.loads({{cookiecutter | jsonify(indent=None) | jsonify}})
CHOICES = Path("choices")
RESERVED = ("parts", "with")


def answer(question: str) -> str:
    """Return what was chosen; what "auto" stands for is kept under a private name."""
    chosen = ANSWERS.get(f"__{question}", ANSWERS.get(question))
    return str(chosen).lower() if isinstance(chosen, bool) else str(chosen)


def chosen_folders() -> Iterator[Path]:
    """Yield the folder of every answer, after the base that it shares with others; not all of them need exist."""
    for question in sorted(folder.name for folder in CHOICES.iterdir()):
        chosen = answer(question)
        for name in (ANSWERS["_bases"].get(question, {}).get(chosen), chosen):
            if name is not None:
                folder = CHOICES / question / name
                yield folder
                yield from (
                    pair for pair in sorted(folder.glob("with/*/*")) if answer(pair.parent.name) == pair.name
                )


def lay(folder: Path, laid: set[Path]) -> None:
    """Move the files of one folder to where they belong in the project, and add these to ``laid``.

    A file of an earlier project is replaced: whoever bakes over one has asked for that (--overwrite-if-exists).
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


if __name__ == "__main__":
    laid: set[Path] = set()
    for chosen in chosen_folders():
        lay(chosen, laid)
    shutil.rmtree(CHOICES)

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
