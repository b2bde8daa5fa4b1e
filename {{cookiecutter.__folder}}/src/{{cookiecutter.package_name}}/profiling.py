"""Where the time of a training goes: ``train.profile``."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import BasicTimeProfiler, HandlersTimeProfiler
from torch import Tensor, nn

from . import connectivity, storage
from .config import Config
from .distributed import hardware

logger = logging.getLogger(__package__)

# The parts of a training, in the order of a step. What is in no other part, such as the log, is in the last one.
PARTS = ("data", "copy", "forward", "backward", "exchange", "optimizer", "evaluation", "checkpoint", "loop")
# Those that come between steps, and only after some of them.
BETWEEN_STEPS = ("evaluation", "checkpoint")
# Steps that are not measured: in the first ones, memory is reserved and kernels are chosen.
WARM_UP = 5
# bytes of a tensor as large as all gradients, to time its all-reduce: a smaller one would tell nothing of the bandwidth
EXCHANGED = (2**20, 64 * 2**20)
# Steps that a trace holds: more make files that no viewer opens.
TRACED = 10
# What to try where a part takes more than a fifth of the time.
LARGE = 0.2
ADVICE = {
    "data": "raise data.num_workers, let the dataset answer whole batches, or decode the files once and for all",
    "copy": "make the samples smaller, such as uint8 instead of float32, and convert them in forward",
    "exchange": "raise data.batch_size or optim.accumulation_steps, or train in fewer processes",
    "optimizer": "raise data.batch_size: the optimizer takes as long for a small batch as for a large one",
    "evaluation": "evaluate less often, by train.evaluate_every",
    "checkpoint": "save less often, by train.save_every",
    "loop": "raise data.batch_size, and train.log_every: the steps are so short that what is around them counts",
}


class Stopwatch:
    """Says nothing and measures nothing: what a training has unless it is profiled."""

    def begin(self, part: str) -> None:
        """Let another part begin, and so the one before it end."""


class RunningStopwatch(Stopwatch):
    """Adds up the seconds of each part on this rank; the device is waited for at the end of each, which costs time itself."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = 0
        self._part = "loop"
        self._since = time.perf_counter()

    def attach(self, trainer: Engine) -> None:
        """Measure the steps of the trainer, but for the first ones."""
        trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: self.begin("data"))
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, lambda: self.begin("loop"))
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._count)

    def begin(self, part: str) -> None:
        """Let another part begin, and so the one before it end."""
        hardware.synchronize()
        now = time.perf_counter()
        self.seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def _count(self) -> None:
        self.steps += 1
        if self.steps == WARM_UP:
            self.seconds = dict.fromkeys(PARTS, 0.0)
            self._since = time.perf_counter()


class Share(NamedTuple):
    """What one part takes of the time of a training."""

    part: str
    milliseconds: float
    """of each step, averaged over the ranks"""
    share: float
    """of the whole time"""
    slowest_rank: int
    slowest_milliseconds: float


def create_stopwatch(config: Config) -> Stopwatch:
    """Return what measures the parts of the training, if it is to be profiled."""
    return Stopwatch() if config.train.profile == "none" else RunningStopwatch()


@contextmanager
def profiled(
    trainer: Engine,
    stopwatch: Stopwatch,
    model: nn.Module,
    config: Config,
    folder: Path,
    step_flops: Callable[[Any], int],
    peak_flops: Callable[[], float],
) -> Iterator[None]:
    """Measure the training inside the ``with`` block, and write what was found to ``folder``; every rank must call it.

    ``step_flops`` tells how many floating-point operations a step by some batch takes, and ``peak_flops`` how many the device
    could do in a second.
    """
    if not isinstance(stopwatch, RunningStopwatch):
        yield
        return
    folder.mkdir(exist_ok=True)
    stopwatch.attach(trainer)
    writes = idist.get_rank() == 0
    tables = {"handlers": HandlersTimeProfiler, "basic": BasicTimeProfiler}
    table: Any = tables[config.train.profile]() if config.train.profile in tables else None
    if table and writes:
        table.attach(trainer)
    flops: list[int] = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=trainer.state.iteration + 1),
        lambda: flops.append(step_flops(trainer.state.batch)),
    )
    with traced(trainer, folder) if config.train.profile == "torch" else nullcontext():
        yield
    shares = list(shares_of(stopwatch))
    memory = int(idist.all_reduce(float(memory_mib()), "MAX"))
    peak = float(idist.all_reduce(peak_flops())) / idist.get_world_size()
    gradient_bytes = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    least, most = EXCHANGED
    alone = idist.get_world_size() == 1
    size, tree = min(max(gradient_bytes, least), most), getattr(model, "by_tree", None)
    exchanges = [] if alone else connectivity.time_all_reduce(size, tree)
    if not writes or not shares:
        return
    storage.write_table(folder / "parts.csv", Share._fields, shares)
    step_ms = sum(share.milliseconds for share in shares if share.part not in BETWEEN_STEPS)
    speed = flops[0] / step_ms * 1e3
    about = {
        "milliseconds": {share.part: share.milliseconds for share in shares},
        "step_milliseconds": step_ms,
        "gflop_per_step": flops[0] / 1e9,
        "gflop_per_s": speed / 1e9,
        "gflop_per_s_of_large_products": peak / 1e9,
        "gradient_bytes": gradient_bytes,
        "all_reduce": exchanges,
        "by_tree": tree is not None,
        "memory_mib": memory,
    }
    storage.write(folder / "profile.json", json.dumps(about, indent=2) + "\n")
    draw_shares(shares, folder / "parts.png")
    if isinstance(table, HandlersTimeProfiler):
        names = ("handler", "event", "seconds", "shortest", "longest", "mean", "deviation")
        rows = ([*row[:2], *map(seconds, row[2:])] for row in table.get_results())
        storage.write_table(folder / "handlers.csv", names, rows)
    elif isinstance(table, BasicTimeProfiler):
        storage.write_table(folder / "basic.csv", ("what", "statistic", "seconds"), flat(table.get_results()))
    logger.info("milliseconds of each step, the first %s aside, and what part of the time that is:", WARM_UP)
    for share in shares:
        slowest = f"{share.slowest_milliseconds:.3g} on rank {share.slowest_rank}"
        logger.info("  %-10s %8.3g  %3.0f %%  (%s)", share.part, share.milliseconds, 100 * share.share, slowest)
    if speed:
        logger.info(
            "each process computes %.3g GFLOP/s, %.0f %% of what the product of large matrices reaches here",
            speed / 1e9,
            100 * speed / peak,
        )
    traces = config.train.profile == "torch"
    said = "the trace itself takes time: train.profile basic says what holds this training back"
    logger.info("%s; all is in %s", said if traces else verdict(shares, config), folder)


def shares_of(stopwatch: RunningStopwatch) -> Iterator[Share]:
    """Yield what each part takes, over all ranks; nothing, if the training was too short."""
    steps = stopwatch.steps - WARM_UP
    if steps < 1:
        logger.warning("too few steps for a profile: it leaves out the first %s", WARM_UP)
        return
    mine = torch.tensor([stopwatch.seconds[part] / steps * 1e3 for part in PARTS])
    everyones = idist.all_gather(mine)
    assert isinstance(everyones, Tensor)
    everyones = everyones.reshape(-1, len(PARTS)).cpu()
    means = everyones.mean(dim=0)
    for place, part in enumerate(PARTS):
        rank = int(everyones[:, place].argmax())
        mean = float(means[place])
        yield Share(part, mean, mean / float(means.sum()), rank, float(everyones[rank, place]))


def memory_mib() -> int:
    """Return how much memory this process has used at most, its device's aside."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used >> (20 if sys.platform == "darwin" else 10)


def verdict(shares: Sequence[Share], config: Config) -> str:
    """Return one sentence: what holds this training back, and what to try."""
    of = {share.part: share for share in shares}
    computing = of["forward"].share + of["backward"].share
    # Not forward: with ddp, it waits for rank 0's buffers, such as BatchNorm's statistics, longest on the rank that is fastest.
    backward, ranks = of["backward"], idist.get_world_size()
    # Of the others alone: of two ranks, the mean is half as far from the slower one.
    others = (backward.milliseconds * ranks - backward.slowest_milliseconds) / max(ranks - 1, 1)
    behind = backward.slowest_milliseconds - others
    worst = max((share for share in shares if share.part in ADVICE), key=lambda share: share.share)
    # Those that wait for it seem to wait for the exchange.
    larger = worst.part != "exchange" and worst.milliseconds > behind
    if ranks > 1 and behind > LARGE * others and not larger:
        return f"rank {backward.slowest_rank} computes slower than the others, which wait for it: look at its machine"
    if worst.share > LARGE:
        return f"{worst.part} takes {worst.share:.0%} of the time: {ADVICE[worst.part]}"
    faster = [
        name
        for name, wanted in (
            ("train.amp bf16", config.train.amp == "none" and idist.device().type != "cpu"),
            ("train.compile true", hardware.COMPILES and not config.train.compile),
            ("more processes", True),
        )
        if wanted
    ]
    return f"the model itself takes {computing:.0%} of the time: try {', or '.join(faster)}"


@contextmanager
def traced(trainer: Engine, folder: Path) -> Iterator[None]:
    """Write what each rank does in some steps, for ui.perfetto.dev, and what is in its device's memory, if it has its own."""
    file = folder / f"trace_{idist.get_rank()}.json.gz"
    tracer = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=WARM_UP, active=TRACED, repeat=1),
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(file)),
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, tracer.step)
    with hardware.memory_recorded(folder / f"memory_{idist.get_rank()}.pickle"), tracer:
        yield


def flat(results: dict[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Yield ignite's nested table as rows: what was measured, which statistic of it, and its seconds."""
    for what, statistics in results.items():
        if what == "event_handlers_names":
            continue
        for name, value in statistics.items():
            if isinstance(value, dict):
                yield from ((name, part.removesuffix("/index"), seconds(measured)) for part, measured in value.items())
            else:
                yield what, name.removesuffix("/index"), seconds(value)


def seconds(measured: Any) -> float | None:
    """Return a number of ignite's tables: the least and the most come with the step they are of, and what never was as text."""
    value = measured[0] if isinstance(measured, tuple) else measured
    return None if isinstance(value, str) else float(value)


def draw_shares(shares: Sequence[Share], path: Path) -> None:
    """Draw one bar for each part: the mean over the ranks, and a mark for the slowest one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    figure.set_layout_engine("constrained")
    names = [share.part for share in shares]
    axes.barh(names, [share.milliseconds for share in shares])
    axes.plot([share.slowest_milliseconds for share in shares], names, "k|", markersize=12, label="slowest rank")
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds of each step", title="where the time goes")
    axes.legend()
    with storage.replacing(path) as file:
        figure.savefig(file, dpi=150, format="png")
