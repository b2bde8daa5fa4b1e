"""What a finished run leaves: summary.json and curves.png."""

from __future__ import annotations

import hashlib
import math
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import ignite
import ignite.distributed as idist
import torch

from .. import state
from ..process import backend, hardware, launcher
from ..state.records import Evaluations, Record
from ..task import Task
from . import logger

SOURCE = Path(__file__).parents[2]


def write_summary(
    path: Path, evaluations: Evaluations, best_file: Path | None, facts: dict[str, Any], settings: Any, task: Task
) -> None:
    """Write summary.json, then draw curves.png, whose failure is only a warning."""
    last, best = (evaluations.all[-1], evaluations.best()) if evaluations.all else ({}, {})
    checkpoint = f"checkpoints/{best_file.name}" if best_file else None
    place = {"backend": settings.distributed.backend, "launcher": launcher.NAME, "hardware": hardware.NAME}
    place |= {"device": device_name(), "world_size": idist.get_world_size(), "nnodes": idist.get_nnodes()}
    source = {"folder": str(SOURCE), "sha256": source_digest(), "commit": commit_of(SOURCE)}
    summary = {**last, **place, **facts, "versions": versions(), "source": source}
    summary["best"] = {**best, "checkpoint": checkpoint}
    state.write(path / "summary.json", state.to_json(summary, indent=2) + "\n")
    if last:
        text = "done in %.0f s: %s %.4g, best %.4g at step %s (%s)"
        score = evaluations.score
        scores = score, last[score], best[score]
        logger.info(text, facts["wall_time_s"], *scores, best["iteration"], checkpoint or "no checkpoint")
        try:
            draw_curves(evaluations.all, path / "curves.png", task)
        except Exception as error:  # noqa: BLE001 - the run itself is complete
            logger.warning("curves.png was not drawn: %s", error)


def draw_curves(records: list[Record], path: Path, task: Task) -> None:
    """Draw one panel for the losses and one for each metric."""
    # Not pyplot: MPLBACKEND may name a backend that is not installed, and a tracker's thread may import it too.
    from matplotlib.figure import Figure

    # Steps, unless every evaluation is at the end of an epoch.
    whole_epochs = len({record["iteration"] / record["epoch"] for record in records}) == 1
    unit = "epoch" if whole_epochs else "iteration"
    losses = [name for name in records[-1] if name.endswith("loss")]
    metrics = [name for name in records[-1] if name.startswith("val_") and name not in losses]
    figure = Figure(figsize=(4.5 * (1 + len(metrics)), 3.5), layout="constrained")
    panels = figure.subplots(1, 1 + len(metrics), squeeze=False)[0]
    figure.suptitle(task.title)
    for panel, names in zip(panels, [losses, *([name] for name in metrics)], strict=True):
        for name in names:
            values = [record.get(name, math.nan) for record in records]
            panel.plot([record[unit] for record in records], values, marker=".", label=name)
        panel.set(xlabel=unit)
        panel.legend()
    positive = all(record.get(name, 1) > 0 for record in records for name in losses)
    panels[0].set(ylabel=task.loss_label, yscale="log" if positive else "linear")
    with state.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")


def source_digest() -> str:
    """Return a hash of the owner's source: the package without its runtime."""
    files = [file for file in sorted(SOURCE.rglob("*.py")) if "runtime" not in file.relative_to(SOURCE).parts]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of everything that must match."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "ignite": ignite.__version__}
    return {**found, **{name: metadata.version(name) for name in backend.PACKAGES}, **hardware.versions()}


def device_name() -> str:
    """Return the name of this process's device."""
    device = idist.device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def commit_of(folder: Path) -> str | None:
    """Return the commit of a folder's repository, or None without one; + if files differ from it."""
    try:
        git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        found = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
