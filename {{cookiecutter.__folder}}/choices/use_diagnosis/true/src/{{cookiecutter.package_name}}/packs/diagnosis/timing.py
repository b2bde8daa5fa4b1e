"""The commands ``timing`` and ``all-reduce``: where the time of a step goes, and how long communication takes.

Everything is measured from outside: by events of the trainer, hooks of torch and functions that are replaced for this run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.utils import convert_tensor, manual_seed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...config import Config
from ...runtime import Task, create_loaders, create_trainer, distribute, prepare_model, split
from ...runtime import engine as frame
from ...runtime.engine import AUTOCAST_TYPES, evaluating
from ...runtime.process import exchange, hardware
from ...step import TrainStep
from ...task import load_task

# In the order of a step. ``loop`` is everything else: events, schedule, clipping, moving average.
PARTS = ("data", "copy", "forward", "backward", "communication", "optimizer", "loop")
# The first steps reserve memory and choose kernels.
WARM_UP = 5
# Advice for a part that takes more than a fifth of the time.
LARGE = 0.2
ADVICE = {
    "data": "raise data.num_workers, or read whole batches in __getitems__",
    "copy": "make samples smaller, such as uint8, and convert them in forward",
    "communication": "raise data.batch_size or optim.accumulation_steps, or use fewer processes",
    "optimizer": "raise data.batch_size",
    "loop": "raise data.batch_size",
}
# A backward pass has two matmuls for each one of the forward pass.
PASSES = 3
PEAK_S = 0.5


class Stopwatch:
    """Sums the seconds of each part on this rank. It waits for the device between parts, which takes time itself."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.part, self.since = "loop", time.perf_counter()
        # Of each backward pass of a step: how many gradients it computes.
        self.gradients: dict[int, int] = {}
        self.passes = self.ready = 0

    def begin(self, part: str, wait: bool = True) -> None:
        """End the current part and start another."""
        if wait:
            hardware.synchronize()
        now = time.perf_counter()
        self.seconds[self.part] += now - self.since
        self.part, self.since = part, now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time belongs to a part."""

        def call(*arguments: Any, **options: Any) -> Any:
            if (outer := self.part) == part:
                return function(*arguments, **options)
            self.begin(part)
            try:
                return function(*arguments, **options)
            finally:
                self.begin(outer)

        return call

    @contextmanager
    def attached(self, trainer: Engine, model: nn.Module) -> Iterator[None]:
        """Measure the steps of a trainer inside the ``with`` block, except the first."""
        backward = self.timed("backward", Tensor.backward)

        def counted(tensor: Tensor, *arguments: Any, **options: Any) -> None:
            self.passes, self.ready = self.passes + 1, 0
            backward(tensor, *arguments, **options)
            self.gradients[self.passes] = self.ready

        def on_gradient(weight: Tensor) -> None:
            self.ready += 1
            # After the last one, DistributedDataParallel only waits for its all-reduces.
            if self.ready == self.gradients.get(self.passes):
                if weight.is_cuda:
                    torch.cuda.current_stream().synchronize()
                self.begin("communication", wait=False)

        @trainer.on(Events.ITERATION_COMPLETED)
        def end_step() -> None:
            self.passes = 0
            if trainer.state.iteration == WARM_UP:
                self.begin("loop")
                self.seconds = dict.fromkeys(PARTS, 0.0)

        trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: self.begin("data"))
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, lambda: self.begin("loop"))
        with ExitStack() as stack:
            # A step of your own may call the parts of a model.
            for module in (model, *getattr(model, "module", model).children()):
                stack.enter_context(patch.object(module, "forward", self.timed("forward", module.forward)))
            for weight in model.parameters() if isinstance(model, DistributedDataParallel) else ():
                if weight.requires_grad:
                    stack.callback(weight.register_post_accumulate_grad_hook(on_gradient).remove)
            stack.callback(register_optimizer_step_pre_hook(lambda *_: self.begin("optimizer")).remove)
            stack.callback(register_optimizer_step_post_hook(lambda *_: self.begin("loop")).remove)
            stack.enter_context(patch.object(Tensor, "backward", counted))
            stack.enter_context(patch.object(frame, "convert_tensor", self.timed("copy", convert_tensor)))
            stack.enter_context(patch.object(exchange, "average", self.timed("communication", exchange.average)))
            yield


def timing(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Train ``--steps`` steps without a run directory, and print the time of each part."""
    task, watch = load_task(config.task), Stopwatch()
    loader, _ = create_loaders(task, config)
    manual_seed(config.train.seed)
    plain = prepare_model(task.create_model(), config.train.compile)
    model = distribute(plain)
    timed = replace(task, forward=watch.timed("forward", task.forward), loss=watch.timed("forward", task.loss))
    steps = WARM_UP + options["steps"]
    trainer = create_trainer(TrainStep(model, timed, config, len(loader), steps), loader, config.train.seed)
    with watch.attached(trainer, model):
        trainer.run(loader, max_iters=steps)
        watch.begin("loop")
    mine = torch.tensor([watch.seconds[part] / options["steps"] * 1e3 for part in PARTS])
    everyones: Any = torch.tensor(exchange.all_gather_object(mine.tolist()))
    flops, peak = step_flops(plain, task, config, trainer.state.batch), peak_flops(config)
    if idist.get_rank() == 0:
        print_parts(everyones)
        speed = flops / float(everyones.sum(1).mean()) * 1e3
        print(f"\nmodel: {speed / 1e9:.3g} GFLOP/s per process, {speed / peak:.0%} of the peak of large matmuls (MFU)")
    return 0


def print_parts(milliseconds: Tensor) -> None:
    """Print a line for each part, from a tensor (ranks, parts), and advice on the largest."""
    means = milliseconds.mean(0)
    shares = dict(zip(PARTS, (means / means.sum()).tolist(), strict=True))
    print("part           ms/step  share  slowest rank")
    for number, part in enumerate(PARTS):
        rank = int(milliseconds[:, number].argmax())
        slowest = f"{milliseconds[rank, number]:.3g} on rank {rank}"
        print(f"{part:13} {means[number]:8.3g}  {shares[part]:5.0%}  {slowest}")
    worst = max(ADVICE, key=lambda part: shares[part])
    if shares[worst] > LARGE:
        print(f"\n{worst} takes {shares[worst]:.0%} of the time: {ADVICE[worst]}")
    else:
        model = shares["forward"] + shares["backward"]
        print(f"\nthe model takes {model:.0%} of the time: try train.amp bf16, train.compile true or more processes")


def step_flops(model: nn.Module, task: Task, config: Config, batch: Any) -> int:
    """Return the floating-point operations of a step on this rank: those of matmuls and convolutions of ``forward``."""
    # It warns if Triton is missing.
    from torch.utils.flop_counter import FlopCounterMode

    parts = config.optim.accumulation_steps
    micro_batch = split(convert_tensor(batch, idist.device()), parts)[0]
    # Compiled operations are not counted.
    eager = torch.compiler.set_stance("force_eager") if config.train.compile else nullcontext()
    with FlopCounterMode(display=False) as counter, evaluating(model), eager:
        task.forward(model, micro_batch)
    return PASSES * parts * int(counter.get_total_flops())


def peak_flops(config: Config) -> float:
    """Return the floating-point operations per second of a matmul of large matrices, on all ranks at once."""
    size = 1024 if idist.device().type == "cpu" else 8192
    matrix = torch.randn(size, size, device=idist.device(), dtype=AUTOCAST_TYPES[config.train.amp])
    product = matrix @ matrix
    hardware.synchronize()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < PEAK_S:
        torch.matmul(matrix, matrix, out=product)
        hardware.synchronize()
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - started)


def all_reduce(local_rank: int, config: Config, options: dict[str, Any]) -> int:
    """Time all-reduces between the processes of a run; rank 0 prints the median."""
    for label, size in (("1 KiB", 2**10), ("64 MiB", 2**26)):
        tensor, seconds = torch.ones(size // 4, device=idist.device()), []
        for _ in range(5):
            started = time.perf_counter()
            exchange.average([tensor])
            hardware.synchronize()
            seconds.append(time.perf_counter() - started)
        if idist.get_rank() == 0:
            print(f"{label:6} {median(seconds) * 1e3:10.3f} ms over {idist.get_world_size()} processes")
    return 0
