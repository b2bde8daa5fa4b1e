"""The command ``seeds``: the same settings trained with several seeds, and how far their results spread."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config import Config
from ...runtime import UsageError
from ...runtime.process import EXIT_RESUMABLE, catching_stop_signals
from . import trials

TITLES = ("metric", "runs", "mean", "std", "min", "max")


def seeds(config: Config, options: dict[str, Any]) -> int:
    """Train with each seed that has no finished run, then print and write the table; return the exit code.

    Raises:
        UsageError: if the folder has runs of other settings, or a run refuses its settings.
    """
    folder, code = Path(config.train.run_dir), 0
    numbers = numbers_in(options["seeds"]) if options["seeds"] else []
    settings = trials.share_settings(config, folder, "train.seed") if numbers else []
    with catching_stop_signals() as signals:
        for seed in numbers:
            run = folder / f"seed-{seed}"
            if (run / "summary.json").exists():
                continue
            if not (lock := trials.claim(run)):
                print(f"seed {seed} is in training by another process")
                continue
            print(f"seed {seed}", flush=True)
            with lock:
                command = [*trials.command(config), *settings, f"--train.seed={seed}"]
                ended, error = trials.train(command, run, signals)
            if ended and (signals or ended == EXIT_RESUMABLE):
                print("stopped; the same command resumes")
                return EXIT_RESUMABLE
            if ended == 2:
                raise UsageError(error)
            if ended:
                code = 1
                print(f"seed {seed} failed ({error}); see {run / trials.OUTPUT}", flush=True)
    files = sorted(folder.glob("seed-*/summary.json"))
    if not files:
        raise UsageError(f"{folder} has no finished run of a seed. Name seeds, such as 0-4.", 1)
    rows = [*spread([json.loads(file.read_text()) for file in files])]
    trials.write_table(folder / "seeds.csv", TITLES, rows)
    trials.print_table(TITLES, rows)
    print(f"the table is in {folder / 'seeds.csv'}")
    return code


def numbers_in(text: str) -> list[int]:
    """Return the seeds of a text such as 0-4 or 0,1,2."""
    if not re.fullmatch(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*", text):
        raise UsageError(f"{text} is not a list of seeds. Use 0,1,2 or 0-4.")
    ends = [part.partition("-") for part in text.split(",")]
    return sorted({seed for low, _, high in ends for seed in range(int(low), int(high or low) + 1)})


def spread(summaries: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield mean, standard deviation (over n - 1), minimum and maximum of each metric of finished runs."""
    runs = [dict(metrics_of(summary)) for summary in summaries]
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if name in run]
        std = statistics.stdev(values) if len(values) > 1 else math.nan
        yield name, len(values), statistics.fmean(values), std, min(values), max(values)


def metrics_of(summary: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the losses and metrics of a run's last evaluation and, as ``best val_...``, of its best one."""
    best = {f"best {name}": value for name, value in summary["best"].items()}
    for name, value in {**summary, **best}.items():
        if name.startswith(("train_loss", "val_", "best val_")) and isinstance(value, int | float):
            yield name, float(value)
