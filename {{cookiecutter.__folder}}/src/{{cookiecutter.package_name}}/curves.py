"""The picture of a run: its loss and every metric, over epochs or steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from . import storage
from .task import objective


def draw_curves(records: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw one panel for the loss and one for each metric of ``records``."""
    # Not pyplot, which a tracker may be importing at the same time, in a thread of its own.
    from matplotlib.figure import Figure

    # Steps, unless every evaluation is the end of an epoch.
    lengths = {record["iteration"] / record["epoch"] for record in records}
    unit = "epoch" if len(lengths) == 1 else "step"
    times = [record["epoch" if unit == "epoch" else "iteration"] for record in records]
    names = [key.removeprefix("val_") for key in records[-1] if key.startswith("val_") and key != "val_loss"]
    figure = Figure(figsize=(4.5 * (1 + len(names)), 3.5), layout="constrained")
    axes = figure.subplots(1, 1 + len(names), squeeze=False)
    figure.suptitle(title)
    losses = {"training": "train_loss", "validation": "val_loss"}
    for name, key in losses.items():
        axes[0, 0].plot(times, [record[key] for record in records], marker=".", label=name)
    positive = all(record[key] > 0 for record in records for key in losses.values())
    what = getattr(objective, "LOSS_LABEL", "loss")
    axes[0, 0].set(title="loss", xlabel=unit, ylabel=what, yscale="log" if positive else "linear")
    axes[0, 0].legend()
    for panel, name in zip(axes[0, 1:], names, strict=True):
        # One that came to the task later begins where it was first measured.
        values = [record.get(f"val_{name}", math.nan) for record in records]
        panel.plot(times, values, marker=".", color="C1")
        panel.set(title=name, xlabel=unit, ylabel=f"validation {name}")
        if name == objective.SCORE:
            numbers = [value for value in values if math.isfinite(value)]
            best = (max if objective.HIGHER_IS_BETTER else min)(numbers, default=None)
            if best is not None:
                panel.axhline(best, color="0.7", linewidth=0.8, zorder=0, label=f"best {best:.4g}")
                panel.legend()
    with storage.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")
