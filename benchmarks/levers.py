"""What does each setting that promises speed or memory gain, and what does a checkpoint cost? Part of ``nox -s benchmark``.

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
from my_ddl_project.config import to_options
from page import RESULTS, fill
from throughput import CASES, PROCESSES, Case, rendered

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
    "compression fp16": Lever({"distributed.compression": "fp16"}, (EXCHANGE,)),
    "compression powersgd": Lever({"distributed.compression": "powersgd"}, (EXCHANGE,)),
    "strategy local-sgd": Lever({"distributed.strategy": "local-sgd"}, (OVERHEAD, EXCHANGE)),
    "strategy zero1": Lever({"distributed.strategy": "zero1"}, (EXCHANGE,)),
    "strategy fsdp2": Lever({"distributed.strategy": "fsdp2"}, (COMPUTE, EXCHANGE)),
    "buckets of 1 MiB": Lever({"distributed.bucket_mib": 1}, (EXCHANGE,)),
    "static graph": Lever({"distributed.static_graph": "true"}, (OVERHEAD, EXCHANGE)),
    "4 accumulation steps": Lever({"optim.accumulation_steps": 4}, (OVERHEAD, EXCHANGE)),
    "moving average of the weights": Lever({"optim.ema_decay": 0.999}, (OVERHEAD, EXCHANGE)),
    "amp bf16": Lever({"train.amp": "bf16"}, (COMPUTE,)),
    "compile": Lever({"train.compile": "true"}, (COMPUTE, OVERHEAD)),
    "channels last": Lever({"train.channels_last": "true"}, (COMPUTE,)),
    "activation checkpointing": Lever({"train.activation_checkpointing": "true"}, (EXCHANGE,)),
    "profile basic": Lever({"train.profile": "basic"}, (COMPUTE, OVERHEAD)),
}
LARGE = Case("images", "mlp", 4096, 64, epochs=1, size=1024)
SAVING = "saving"
SAVES = 10
WHERE = {str(PROCESSES): "a process on each core", "1": "one process, and a core to spare"}
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


def seconds_of_saves(folder: Path, laps: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of 100 steps of each lap: without a checkpoint, with ten that are waited for, and with ten beside them.

    With a process on each core, and with one process, which leaves a core to spare.
    """
    return {str(processes): _seconds_of_saves(folder, laps, processes) for processes in (PROCESSES, 1)}


def _seconds_of_saves(folder: Path, laps: int, processes: int) -> dict[str, list[float]]:
    every = {
        "none": {"train.save_every": "1000000 steps"},
        "waited for": {"train.save_every": f"{100 // SAVES} steps", "train.async_save": "false"},
        "beside the steps": {"train.save_every": f"{100 // SAVES} steps", "train.async_save": "true"},
    }
    programs = {
        name: partial(
            rendered, LARGE, folder, *to_options({**settings, "train.log_every": 100}), processes=processes
        )
        for name, settings in every.items()
    }
    return in_turns(programs, STARTS, laps)[0]


def costs_of_a_save(seconds: dict[str, list[float]]) -> tuple[float, float]:
    """Return the seconds that a checkpoint costs if the training waits for it, and if it is written beside the steps."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    waited, beside = (
        (medians[name] - medians["none"]) / SAVES for name in ("waited for", "beside the steps")
    )
    return waited, beside


def cell(found: dict[str, dict[str, tuple[list[float], int]]], lever: str) -> str:
    """Return what a table says of a lever."""
    if lever not in found:
        return ""
    (speeds, memory), (plain, plain_memory) = found[lever]["with"], found[lever]["without"]
    ratios = [one / other for one, other in zip(speeds, plain, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}), {memory - plain_memory:+} MiB"


def main() -> None:
    """Measure, keep the numbers of each work as soon as they are there, and write the tables."""
    every = (*WORK, SAVING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--work", choices=every, nargs="*", default=every, help="measure anew only these")
    parser.add_argument(
        "--lever", choices=LEVERS, nargs="*", default=[*LEVERS], help="of the work, only these"
    )
    options = parser.parse_args()
    numbers = RESULTS / "levers-cpu.json"
    kept = json.loads(numbers.read_text()) if numbers.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for work in options.work:
            if work == SAVING:
                kept[work] = seconds_of_saves(Path(name), options.laps)
            else:
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
    if SAVING in kept:
        costs = {processes: costs_of_a_save(seconds) for processes, seconds in kept[SAVING].items()}
        fill(
            "checkpoints",
            [
                "What a checkpoint of 12.6 million weights with adamw, 151 MB, costs the training, in seconds.",
                "",
                "| | it waits | written beside the next steps | |",
                "|---|---|---|---|",
                *(
                    f"| {WHERE[processes]} | {waited:.3f} | {beside:.3f} | {beside / waited:.0%} |"
                    for processes, (waited, beside) in costs.items()
                ),
            ],
        )


if __name__ == "__main__":
    main()
