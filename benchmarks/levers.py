"""What does each setting that promises speed or memory gain, and what does a checkpoint cost? Part of ``nox -s benchmark``.

The rendered project trains with two gloo processes, with one setting and without any, lap by lap in turns. Results are kept in
benchmarks/results.
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

from laps import in_turns
from my_ddl_project.config import to_options
from throughput import CASES, RESULTS, Case, rendered

LEVERS: dict[str, dict[str, object]] = {
    "compression fp16": {"distributed.compression": "fp16"},
    "compression powersgd": {"distributed.compression": "powersgd"},
    "strategy local-sgd": {"distributed.strategy": "local-sgd"},
    "strategy zero1": {"distributed.strategy": "zero1"},
    "strategy fsdp2": {"distributed.strategy": "fsdp2"},
    "buckets of 1 MiB": {"distributed.bucket_mib": 1},
    "static graph": {"distributed.static_graph": "true"},
    "4 accumulation steps": {"optim.accumulation_steps": 4},
    "moving average of the weights": {"optim.ema_decay": 0.999},
    "amp bf16": {"train.amp": "bf16"},
    "compile": {"train.compile": "true"},
    "channels last": {"train.channels_last": "true"},
    "activation checkpointing": {"train.activation_checkpointing": "true"},
    "profile basic": {"train.profile": "basic"},
}
WORK = {
    "compute-bound: CNN, 32x32": CASES["compute-bound: CNN, 32x32"],
    "overhead-bound: MLP, batch 128": CASES["overhead-bound: MLP, batch 128"],
    "exchange-bound: 8 M weights in blocks, batch 64": Case("images", "deep", 320, 64, epochs=2, size=1024),
}
LARGE = Case("images", "mlp", 4096, 64, epochs=1, size=1024)
SAVES = 10
STARTS = 2
"""how often each program is started anew"""


def offers(case: Case, lever: str) -> bool:
    """Tell whether the model of a case has what a lever works on."""
    return {"activation checkpointing": case.model == "deep", "channels last": case.model == "cnn"}.get(
        lever, True
    )


def measure(case: Case, folder: Path, laps: int) -> dict[str, dict[str, tuple[list[float], int]]]:
    """Return samples per second of each lap and MiB, for each lever: with it, and without any at the same time."""
    found = {}
    for lever, settings in LEVERS.items():
        if not offers(case, lever):
            continue
        programs = {
            "with": partial(rendered, case, folder, *to_options(settings)),
            "without": partial(rendered, case, folder),
        }
        seconds, memory = in_turns(programs, STARTS, laps)
        found[lever] = {
            name: ([case.samples / lap for lap in taken], memory[name]) for name, taken in seconds.items()
        }
    return found


def seconds_of_saves(folder: Path, laps: int) -> dict[str, list[float]]:
    """Return the seconds of 100 steps of each lap: without a checkpoint, with ten that are waited for, and with ten beside them."""
    every = {
        "none": {"train.save_every": "1000000 steps"},
        "waited for": {"train.save_every": f"{100 // SAVES} steps", "train.async_save": "false"},
        "beside the steps": {"train.save_every": f"{100 // SAVES} steps", "train.async_save": "true"},
    }
    programs = {
        name: partial(rendered, LARGE, folder, *to_options({**settings, "train.log_every": 100}))
        for name, settings in every.items()
    }
    return in_turns(programs, STARTS, laps)[0]


def cell(found: dict[str, dict[str, tuple[list[float], int]]], lever: str) -> str:
    """Return what a table says of a lever."""
    if lever not in found:
        return ""
    (speeds, memory), (plain, plain_memory) = found[lever]["with"], found[lever]["without"]
    ratios = [one / other for one, other in zip(speeds, plain, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}), {memory - plain_memory:+} MiB"


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laps", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {work: measure(case, folder, options.laps) for work, case in WORK.items()}
        saves = seconds_of_saves(folder, options.laps)
    about = f"{os.cpu_count()} CPU cores, torch {version('torch')}, Python {platform.python_version()}"
    medians = {name: statistics.median(values) for name, values in saves.items()}
    waited, beside = (
        (medians[name] - medians["none"]) / SAVES for name in ("waited for", "beside the steps")
    )
    lines = [
        f"Two gloo processes, {about}, {datetime.date.today().isoformat()}: medians of {STARTS * options.laps} laps in turns.",
        "Speed: samples per second, divided by those without the setting (lowest to highest of the laps).",
        "Memory: what the largest process needs more than without it.",
        "",
        f"| setting | {' | '.join(WORK)} |",
        f"|---|{'---|' * len(WORK)}",
        *(f"| {lever} | {' | '.join(cell(found[work], lever) for work in WORK)} |" for lever in LEVERS),
        "",
        f"A checkpoint of 12.6 million weights with adamw, 151 MB, costs the training {waited:.3f} s if it waits, and",
        f"{beside:.3f} s if the checkpoint is written beside the next steps: {beside / waited:.0%}.",
    ]
    print("\n".join(lines))
    (RESULTS / "levers-cpu.md").write_text("\n".join(lines) + "\n")
    (RESULTS / "levers-cpu.json").write_text(json.dumps({"levers": found, "seconds": saves}, indent=1) + "\n")


if __name__ == "__main__":
    main()
