"""docs/benchmarks.md, whose tables the benchmarks write between comments that name them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


def fill(name: str, lines: list[str]) -> None:
    """Print a table, and write it into the page, in the place of the last one of this name.

    Raises:
        ValueError: if the page has no such place.
    """
    print("\n".join(lines), flush=True)
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    table = "\n".join(["", *lines, "", ""])
    text, found = place.subn(lambda match: match[1] + table + match[2], PAGE.read_text(encoding="utf-8"))
    if found != 1:
        raise ValueError(f"{PAGE} has {found} places for {name}")
    PAGE.write_text(text, encoding="utf-8")
