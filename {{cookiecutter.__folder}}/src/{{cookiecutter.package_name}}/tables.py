"""Tables on the screen."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

# Where no screen says how wide it is, nothing is to be cut.
WIDE = 1000


def print_table(table: Table) -> None:
    """Print a table, to a file or a program in its full width, and its texts as they are, such as a path with [x] in it."""
    Console(width=None if sys.stdout.isatty() else WIDE, markup=False, emoji=False).print(table)
