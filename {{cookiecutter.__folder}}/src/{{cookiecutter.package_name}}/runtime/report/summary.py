"""Reports of a run: the first lines of the log, a comparison of the data, summary.json and curves.png."""

from __future__ import annotations

import hashlib
import math
import platform
import subprocess
import zlib
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import ignite
import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from .. import state
from ..data import Share, seed_step, used_rng
from ..data.loader import Reader
from ..process import backend, exchange, hardware, launcher
from ..state.records import Evaluations, Record
from ..task import Task
from . import UsageError, logger

SOURCE = Path(__file__).parents[2]


def log_startup(
    trainer: Engine, task: Task, model: nn.Module, config: Any, steps_per_epoch: int, last_step: int
) -> None:
    """Log processes, data, model and length of the run; compare the ranks' data, and the model after the first step.

    Raises:
        UsageError: if the ranks have different data, or the first step changes the names or shapes of weights and buffers.
    """
    world_size, batch_size = idist.get_world_size(), config.data.batch_size
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    validation = ", ".join(f"{len(dataset)} {name}".strip() for name, dataset in task.val.items())
    share, threads = batch_size // world_size, torch.get_num_threads()
    backend = idist.backend() or "none"
    logger.info("processes: %s on %s, backend %s, %s threads each", world_size, device_name(), backend, threads)
    logger.info("data: %s, %s training and %s validation samples", task.title, len(task.train), validation)
    logger.info("model: %s, %s trainable parameters", type(model).__name__, f"{trainable:,}")
    text = "training: %s steps of %s samples, %s on each process, %s steps per epoch; writes to %s"
    logger.info(text, last_step, batch_size, share, steps_per_epoch, config.train.run_dir)
    if any(isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        samples = share // config.optim.accumulation_steps
        logger.info("BatchNorm sees %s samples at a time: results depend on the number of processes", samples)
    compare_data(task, config)
    before = shapes_of(model)

    @trainer.on(Events.ITERATION_COMPLETED(once=trainer.state.iteration + 1))
    def check_first_step() -> None:
        if changed := sorted(before.items() ^ shapes_of(model).items()):
            fix = "Create it with its final shape in create_model."
            raise UsageError(f"the first step changed {changed[0][0]} in the model's state_dict. {fix}", 1)
        reseed = partial(seed_step, config.train.seed, idist.get_rank(), trainer.state.iteration)
        if hardware.SHOWS_RNG_USE and used_rng(reseed, idist.device()):
            logger.info("a step uses random numbers, such as dropout: results depend on the number of processes")


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight and buffer by name."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def compare_data(task: Task, config: Any) -> None:
    """Raise UsageError if the ranks' data differ in size; warn if samples differ, or change when they are read again."""
    datasets = {"training": task.train, **{f"validation {name}".strip(): one for name, one in task.val.items()}}
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    fix = "make load in task/data.py return the same data on every rank"
    fingerprints: list[Any] = []
    # Workers may need to open the data first.
    for name, dataset in datasets.items() if not config.data.num_workers else ():
        reader = Reader(dataset, config.train.seed, task.collate)
        first, again = fingerprint(reader, len(dataset)), fingerprint(reader, len(dataset))
        fingerprints.append(first)
        if first != again:
            text = "a sample of the %s data changed when it was read again: use the global generators of torch, NumPy or Python"
            logger.warning(text, name)
    gathered = exchange.all_gather_object((sizes, fingerprints))
    for rank, (rank_sizes, rank_fingerprints) in enumerate(gathered):
        if rank_sizes != gathered[0][0]:
            raise UsageError(f"rank {rank} has {rank_sizes} samples, rank 0 {gathered[0][0]}: {fix}.", 1)
        if rank_fingerprints != gathered[0][1]:
            logger.warning("samples of rank %s differ from those of rank 0: %s", rank, fix)


def fingerprint(reader: Reader, size: int) -> list[float]:
    """Return numbers that identify the first and the last sample of a dataset; an empty list if reading fails."""
    try:
        leaves = [
            leaf for index in (0, size - 1) for leaf in pytree.tree_leaves(reader.__getitems__(Share(0, [index])))
        ]
    except Exception:  # noqa: BLE001 - the run raises it when it reads the sample
        return []
    sums = [float(leaf.double().nan_to_num().sum()) for leaf in leaves if isinstance(leaf, Tensor)]
    return sums + [float(zlib.crc32(leaf.encode())) for leaf in leaves if isinstance(leaf, str)]


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
