"""What does each setting that promises speed or memory gain? Part of ``nox -s benchmark``.

The rendered project trains with two gloo processes, with one setting and without any, lap by lap in turns. The numbers are kept in
benchmarks/results, the tables in docs/benchmarks.md.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from laps import in_turns
from page import RESULTS, fill, to_options
from throughput import CASES, Case, rendered

COMPUTE, OVERHEAD, EXCHANGE = (
    "compute-bound: CNN, 32x32",
    "overhead-bound: MLP, batch 128",
    "exchange-bound: 8 M weights in blocks, batch 64",
)
WORK = {
    COMPUTE: CASES[COMPUTE],
    OVERHEAD: CASES[OVERHEAD],
    EXCHANGE: Case("images", "deep", 320, 64, epochs=2, size=1024),
}


class Lever(NamedTuple):
    """A setting, and the work on which it has something to gain or to lose."""

    settings: dict[str, object]
    works: tuple[str, ...]


LEVERS = {
    "strategy local-sgd": Lever({"distributed.strategy": "local-sgd"}, (OVERHEAD, EXCHANGE)),
    "strategy zero1": Lever({"distributed.strategy": "zero1"}, (EXCHANGE,)),
    "strategy fsdp2": Lever({"distributed.strategy": "fsdp2"}, (COMPUTE, EXCHANGE)),
    "4 accumulation steps": Lever({"optim.accumulation_steps": 4}, (OVERHEAD, EXCHANGE)),
    "moving average of the weights": Lever({"optim.ema_decay": 0.999}, (OVERHEAD, EXCHANGE)),
    "amp bf16": Lever({"train.amp": "bf16"}, (COMPUTE,)),
    "compile": Lever({"train.compile": "true"}, (COMPUTE, OVERHEAD)),
    "profile basic": Lever({"train.profile": "basic"}, (COMPUTE, OVERHEAD)),
}
STARTS = 2
"""how often each program is started anew"""


def measure(
    work: str, levers: list[str], folder: Path, laps: int
) -> dict[str, dict[str, tuple[list[float], int]]]:
    """Return samples per second of each lap and MiB, for each of these levers: with it, and without any at the same time."""
    case, found = WORK[work], {}
    for name in levers:
        lever = LEVERS[name]
        if work not in lever.works:
            continue
        programs = {
            "with": partial(rendered, case, folder, *to_options(lever.settings)),
            "without": partial(rendered, case, folder),
        }
        seconds, memory = in_turns(programs, STARTS, laps)
        found[name] = {
            one: ([case.samples / lap for lap in taken], memory[one]) for one, taken in seconds.items()
        }
        print(f"{work}: {name}: {cell(found, name)}", flush=True)
    return found


def cell(found: dict[str, dict[str, tuple[list[float], int]]], lever: str) -> str:
    """Return what a table says of a lever."""
    if lever not in found:
        return ""
    (speeds, memory), (plain, plain_memory) = found[lever]["with"], found[lever]["without"]
    ratios = [one / other for one, other in zip(speeds, plain, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}), {memory - plain_memory:+} MiB"


def main() -> None:
    """Measure, keep the numbers of each work as soon as they are there, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--work", choices=WORK, nargs="*", default=[*WORK], help="measure anew only these")
    parser.add_argument(
        "--lever", choices=LEVERS, nargs="*", default=[*LEVERS], help="of the work, only these"
    )
    options = parser.parse_args()
    numbers = RESULTS / "levers-cpu.json"
    kept = json.loads(numbers.read_text()) if numbers.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for work in options.work:
            kept[work] = {**kept.get(work, {}), **measure(work, options.lever, Path(name), options.laps)}
            numbers.write_text(json.dumps(kept, indent=1) + "\n")
    about = f"{os.cpu_count()} CPU cores, torch {version('torch')}, Python {platform.python_version()}"
    fill(
        "levers",
        [
            f"Two gloo processes, {about}; medians of {STARTS * options.laps} laps; the newest of {datetime.date.today().isoformat()}.",
            "",
            f"| setting | {' | '.join(WORK)} |",
            f"|---|{'---|' * len(WORK)}",
            *(
                f"| {lever} | {' | '.join(cell(kept.get(work, {}), lever) for work in WORK)} |"
                for lever in LEVERS
            ),
        ],
    )


if __name__ == "__main__":
    main()
