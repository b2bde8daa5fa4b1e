"""What does each setting that promises speed or memory gain, and what does a checkpoint cost? Part of ``nox -s benchmark``.

The rendered project trains with two gloo processes, with one setting at a time and without any, in turns. Results are kept in
benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path

from my_ddl_project.config import to_options
from throughput import CASES, RESULTS, Case, rendered, run, speed_of_rendered

LEVERS: dict[str, dict[str, object]] = {
    "none": {},
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
    "compute-bound: CNN, 32x32": CASES["compute-bound: CNN, 32x32"]._replace(epochs=3),
    "overhead-bound: MLP, batch 128": CASES["overhead-bound: MLP, batch 128"]._replace(epochs=50),
    "exchange-bound: 8 M weights in blocks, batch 64": Case("images", "deep", 320, 64, epochs=4, size=1024),
}
LARGE = Case("images", "mlp", 4096, 64, epochs=15, size=1024)
SAVES = 10


def offers(case: Case, lever: str) -> bool:
    """Tell whether the model of a case has what a lever works on."""
    return {"activation checkpointing": case.model == "deep", "channels last": case.model == "cnn"}.get(
        lever, True
    )


def measure(case: Case, folder: Path, rounds: int) -> dict[str, list[tuple[float, int]]]:
    """Return samples per second and MiB of each round, with each of the levers."""
    found: dict[str, list[tuple[float, int]]] = {lever: [] for lever in LEVERS if offers(case, lever)}
    for number in range(rounds):
        names = list(found)
        for name in names[number:] + names[:number]:
            found[name].append(speed_of_rendered(case, folder, *to_options(LEVERS[name])))
    return found


def seconds_of_saves(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of 100 steps of each round: without a checkpoint, with ten that are waited for, and with ten more."""
    every = {
        "none": {},
        "waited for": {"train.async_save": "false"},
        "beside the steps": {"train.async_save": "true"},
    }
    found: dict[str, list[float]] = {name: [] for name in every}
    for number in range(rounds):
        names = list(found)
        for name in names[number:] + names[:number]:
            settings = {
                **every[name],
                "train.save_every": f"{100 // SAVES} steps" if every[name] else "1000 steps",
                "train.evaluate_every": "1000 steps",
                "train.max_iterations": 120,
            }
            with tempfile.TemporaryDirectory(dir=folder) as run_dir:
                steps = run(rendered(LARGE, folder, "--train.run_dir", run_dir, *to_options(settings))).steps
            # A save follows the line of its step: the first and the last time are of the same distance to one.
            found[name].append(steps[110] - steps[10])
    return found


def cell(found: dict[str, list[tuple[float, int]]], lever: str) -> str:
    """Return what a table says of a lever."""
    if lever not in found:
        return ""
    memory = f"{statistics.median(memory for _, memory in found[lever]):.0f} MiB"
    if lever == "none":
        return f"{statistics.median(speed for speed, _ in found[lever]):,.0f} samples/s, {memory}"
    ratios = [one[0] / plain[0] for one, plain in zip(found[lever], found["none"], strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}), {memory}"


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {work: measure(case, folder, options.rounds) for work, case in WORK.items()}
        saves = seconds_of_saves(folder, options.rounds)
    about = f"{os.cpu_count()} CPU cores, torch {version('torch')}, Python {platform.python_version()}"
    medians = {name: statistics.median(values) for name, values in saves.items()}
    waited, beside = (
        (medians[name] - medians["none"]) / SAVES for name in ("waited for", "beside the steps")
    )
    lines = [
        f"Two gloo processes, {about}, {datetime.date.today().isoformat()}: medians of {options.rounds} rounds in turns.",
        "Speed: samples per second, divided by those without the setting (lowest to highest of the rounds).",
        "Memory: of the largest process.",
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
