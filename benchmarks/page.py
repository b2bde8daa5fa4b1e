"""docs/benchmarks.md: the benchmarks write its tables between comments that name them."""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"


def fill(name: str, lines: list[str]) -> None:
    """Print a table, and replace the one of this name in the page.

    Raises:
        ValueError: if the page has no place for it.
    """
    print("\n".join(lines), flush=True)
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    table = "\n".join(["", *lines, "", ""])
    text, found = place.subn(lambda match: match[1] + table + match[2], PAGE.read_text(encoding="utf-8"))
    if found != 1:
        raise ValueError(f"{PAGE} has {found} places for {name}")
    PAGE.write_text(text, encoding="utf-8")


def to_options(settings: Mapping[str, object]) -> list[str]:
    """Return the options of a command line for settings such as ``{"train.epochs": 2}``."""
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]
