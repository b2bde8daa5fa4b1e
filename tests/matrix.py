"""What each target's test saw, kept while the tests run and written to docs/support-matrix.md afterwards.

``python tests/matrix.py`` writes the table from what was seen here, the newest for each target; with ``--check`` it
also fails if the committed table, dates, versions and differences aside, says anything else; with ``--some``, only the rows
of what was seen change.
"""

import argparse
import datetime
import json
import re
import sys

from baking import ROOT, TARGETS, Target

SEEN = ROOT / ".cache" / "seen"
MATRIX = ROOT / "docs" / "support-matrix.md"
ON_GPU = "executed on GPU"

INTRODUCTION = """\
# Support matrix

Written by the tests, never by hand.

- **executed**: a test rendered the target, installed the packages that its own pyproject.toml requires, and the MPI, Horovod or
  torch that its README names, started its own launcher, and checked what was learned.
- **stand-in**: the same, but without the hardware; what ran instead is named.
- **rendered only**: rendered, read, parsed, linted and typed, but not started.

*Difference* is the largest one of any weight, after 44 steps, to the same steps of a single process in plain torch.

A GPU was used where a row says "executed on GPU", and nowhere else; the tests train these targets with two processes as stand-ins. No test here has used a real TPU, and no Kubernetes
cluster has accepted a manifest.

| hardware | backend | launcher | status | processes | date | versions | difference |
|---|---|---|---|---|---|---|---|
"""


def record(target: Target, status: str, processes: str, versions: str, difference: str) -> None:
    """Remember what a test has just seen of ``target``."""
    SEEN.mkdir(parents=True, exist_ok=True)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    seen = {
        "status": status,
        "processes": processes,
        "date": today,
        "versions": versions,
        "difference": difference,
    }
    (SEEN / f"{target}.json").write_text(json.dumps(seen))


def table(old: str, all_were_seen: bool = True) -> str:
    """Return the document for what has been seen, in the place of the ``old`` one.

    A stand-in takes nothing back that was executed on a GPU. Unless all targets were to be seen, those that were not keep
    their row.
    """
    before = {Target(*cells_of(line)[:3]): line for line in rows(old)}
    lines = []
    for target in TARGETS:
        file, kept = SEEN / f"{target}.json", before.get(target, "")
        seen = json.loads(file.read_text()) if file.exists() else {"status": "rendered only"}
        was_on_gpu = ON_GPU in kept and seen["status"].startswith("stand-in")
        if kept and (was_on_gpu or not (all_were_seen or file.exists())):
            lines.append(f"{kept}\n")
            continue
        cells = [
            *target,
            *(seen.get(key, "") for key in ("status", "processes", "date", "versions", "difference")),
        ]
        lines.append("| " + " | ".join(cells) + " |\n")
    return INTRODUCTION + "".join(lines)


def rows(document: str) -> list[str]:
    """Return the lines of the targets."""
    return [line for line in document.splitlines() if re.match(r"\| (cpu|gpu|tpu) ", line)]


def cells_of(row: str) -> list[str]:
    """Return target, status and number of processes of a row: what does not change from day to day."""
    return re.split(r"\s*\|\s*", row)[1:6]


def main() -> int:
    """Write the table; with --check, return 1 if the rows have changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the rows have changed")
    parser.add_argument("--some", action="store_true", help="leave the rows of targets that were not tested")
    options = parser.parse_args()
    old = MATRIX.read_text() if MATRIX.exists() else ""
    new = table(old, all_were_seen=not options.some)
    cells, known = [list(map(cells_of, rows(document))) for document in (new, old)]
    changed = [row for row in cells if row not in known]
    MATRIX.write_text(new)
    print("\n".join(map(" ".join, cells)))
    if options.check and changed:
        print(
            f"{MATRIX.relative_to(ROOT)} said something else of {changed}: commit the new one",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
