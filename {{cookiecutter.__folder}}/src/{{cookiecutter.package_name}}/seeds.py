"""How much the result depends on chance: the same settings trained with several seeds, and what their numbers spread over."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from . import storage, trials
from .changes import Change, Settings, changed_settings, changes_results
from .checks import require
from .config import EXIT_RESUMABLE, Config, to_dict
from .errors import UsageError
from .launch import planned_size, setting_checks
from .tables import print_table
from .task import objective

# Of one command: a range of all numbers that there are is a mistake.
MOST_SEEDS = 10_000


class Spread(NamedTuple):
    """One number that every run has."""

    metric: str
    runs: int
    """that have it"""
    mean: float
    std: float
    """the estimate from n - 1; not a number for a single run"""
    min: float
    max: float


def seeds(config: Config, arguments: list[str], asked: str, here: bool) -> int:
    """Train with each seed that has not been trained with, then print and write the table; return the exit code.

    Args:
        arguments: all of this command's, for the jobs of a cluster.
        asked: seeds such as 0,1,2 or 0-4; none: only make the table.
        here: train in processes of this machine alone, whatever the launcher.

    Raises:
        UsageError: if the settings cannot work, or the runs differ, or would differ, in more than their seeds.
    """
    folder, failed, busy = Path(config.train.run_dir), False, list[str]()
    if asked:
        numbers, command = numbers_in(asked), trials.command_of_each(here)
        refuse_other_settings(folder, numbers, config)
        if command is None:
            require(setting_checks(config, planned_size().world_sizes(), here=False))
            return trials.submit(config, ["seeds", *arguments])
        storage.open_folder(folder)
        with trials.stop_signals() as signals:
            for seed in numbers:
                run = folder / f"seed-{seed}"
                if is_trained(run, config):
                    continue
                if signals:
                    return stopped()
                if not (claim := trials.claim(run)):
                    busy.append(str(seed))
                    continue
                print(f"seed {seed}", flush=True)
                with claim:
                    # Not one file for all: another command in this folder may have other settings.
                    settings = trials.keep_settings(config, run)
                    ended = trials.train(command, [*settings, f"--train.seed={seed}"], run, signals, lambda: False)
                if ended.code and (signals or ended.code == EXIT_RESUMABLE):
                    return stopped()
                if ended.code == 2:
                    raise UsageError(ended.why)
                if ended.code:
                    failed = True
                    print(f"seed {seed} failed: {ended.why}; see {run / trials.OUTPUT}", flush=True)
    # Others may have ended theirs since: else each process would leave the table to another one.
    busy = [seed for seed in busy if not is_trained(folder / f"seed-{seed}", config)]
    if busy:
        print(f"others are training {', '.join(busy)}: the last of them makes the table")
    else:
        show(folder)
    return int(failed)


def stopped() -> int:
    """Say that a signal has ended this command; return the exit code."""
    print("stopped: the same command resumes")
    return EXIT_RESUMABLE


def numbers_in(asked: str) -> list[int]:
    """Return the seeds that stand in a text.

    Raises:
        UsageError: if they are none.
    """
    if not re.fullmatch(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*", asked):
        raise UsageError(f"{asked} must be seeds, such as 0,1,2 or 0-4")
    ends = [(int(low), int(high or low)) for low, _, high in (part.partition("-") for part in asked.split(","))]
    if backwards := [f"{low}-{high}" for low, high in ends if high < low]:
        raise UsageError(f"{backwards[0]} holds no seed: write the smaller one first")
    if sum(high - low + 1 for low, high in ends) > MOST_SEEDS:
        raise UsageError(f"{asked} are more than {MOST_SEEDS} seeds: name fewer")
    return sorted({seed for low, high in ends for seed in range(low, high + 1)})


def refuse_other_settings(folder: Path, numbers: list[int], config: Config) -> None:
    """Refuse to train what could not stand in one table with the runs of other seeds in the folder.

    Raises:
        UsageError: with the settings that differ.
    """
    strategy, asked = config.distributed.strategy, {f"seed-{number}" for number in numbers}
    for file in sorted(folder.glob("seed-*/config.yaml")):
        if file.parent.name in asked:
            # It trains on with these settings, or says why it cannot.
            continue
        if names := names_that_differ(to_dict(config), settings_of(file.parent), strategy):
            fix = "choose another --train.run_dir, the same settings, or remove it"
            differs = f"{file.parent}, which would be in the same table, was trained with another {', '.join(names)}"
            raise UsageError(f"{differs}: {fix}")


def is_trained(run: Path, config: Config) -> bool:
    """Tell whether a run has been trained to its end with these settings; with others, the training says what to do."""
    if not (run / "summary.json").exists() or not (run / "config.yaml").exists():
        return False
    return not names_that_differ(settings_of(run), to_dict(config), config.distributed.strategy)


def names_that_differ(old: Settings, new: Settings, strategy: str) -> list[str]:
    """Return the settings of ``new``, but for the seed, that let another training learn something else than ``old``."""
    # How many processes there will be, only the launcher may know; what it has started has their number.
    changes = [change for change in changed_settings(old, new) if change.name != "train.seed" and not is_open(change)]
    return [change.name for change in changes if changes_results(change, strategy)]


def is_open(change: Change) -> bool:
    """Tell whether one of the two has left the number of processes to its launcher."""
    return change.name == "distributed.nproc_per_node" and None in (change.old, change.new)


def settings_of(run: Path) -> Settings:
    """Return the settings of a run.

    Raises:
        UsageError: if their file is damaged.
    """
    return storage.read_settings(run / "config.yaml")


def spread(folder: Path) -> list[Spread]:
    """Return the table of the runs in the folders ``seed-N`` that were trained to their end.

    Raises:
        UsageError: if there are none, or they differ in more than their seeds.
    """
    runs = [file.parent for file in sorted(folder.glob("seed-*/summary.json"))]
    if not runs:
        raise UsageError(f"{folder} holds no finished run of a seed: name some, such as 0-4", 1)
    first, *others = map(settings_of, runs)
    strategy = str(first.get("distributed", {}).get("strategy"))
    if names := {name for other in others for name in names_that_differ(other, first, strategy)}:
        differ = f"the runs in {folder} differ in {', '.join(sorted(names))}, not in their seeds alone"
        raise UsageError(f"{differ}: remove those that do not belong there")
    numbers = [dict(numbers_of(json.loads((run / "summary.json").read_text()))) for run in runs]
    rows = []
    for name in dict.fromkeys(name for one in numbers for name in one):
        values = [one[name] for one in numbers if name in one]
        std = statistics.stdev(values) if len(values) > 1 else math.nan
        rows.append(Spread(name, len(values), statistics.fmean(values), std, min(values), max(values)))
    return rows


def numbers_of(summary: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the losses and metrics of a run at its end, and the score of its best evaluation."""
    score = f"val_{objective.SCORE}"
    best = {f"best {score}": (summary.get("best") or {}).get(score)}
    for name, value in {**summary, **best}.items():
        if name.startswith(("train_loss", "val_", "best val_")) and isinstance(value, int | float):
            yield name, float(value)


def show(folder: Path) -> None:
    """Print the table and write it as seeds.csv."""
    rows = spread(folder)
    storage.write_table(folder / "seeds.csv", Spread._fields, rows)
    table = Table(*Spread._fields, box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.metric, str(row.runs), *(f"{value:.4g}" for value in row[2:]))
    print_table(table)
    print(f"all is in {folder / 'seeds.csv'}")
    summaries = [json.loads(file.read_text()) for file in folder.glob("seed-*/summary.json")]
    if len(sizes := sorted({summary["world_size"] for summary in summaries})) > 1:
        text = "they were trained by {} processes: where log.txt says that results change with their number, so they do here"
        print(text.format(" and ".join(map(str, sizes))))
