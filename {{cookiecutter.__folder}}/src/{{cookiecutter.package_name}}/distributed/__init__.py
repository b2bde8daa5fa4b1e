"""How the processes of this project start, meet, exchange and end; nobody else knows.

launcher.py   how a training is started, on one machine or many, and where its ranks come from
starter.py    how the processes of one machine are started
transport.py  facts about the backend, without torch
backend.py    how processes meet, average gradients and exchange tensors
hardware.py   what each process computes on

This file ties them together: ``launch`` starts launcher.command; in each process that this starts, ``train`` calls run
here, which goes through starter.run to _in_process, and that joins the others by backend.join. A launcher and a starter
differ where a cluster leaves the processes of a machine to another program. Only backend.py imports torch at its top,
so a command line is checked, and most trainings are launched, without it.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any

from ..checks import Check, processes, refuse_foreign_launchers
from ..config import PACKAGE, Config, DistributedConfig, Ranks
from ..errors import SampleError, UsageError
from ..failures import say, sum_up, tell
from ..host_memory import keep_freed_memory
from . import hardware, launcher, starter, transport

TRIAL = hardware.TRIAL
# How long a process that has failed waits before it ends the others, which may have failed too, and say so.
UNTIL_ENDED_S = 2.0


def resolve(config: Config) -> Config:
    """Replace the answers "auto" by what this project was made for.

    Raises:
        UsageError: for a backend or a device that this project was not made for.
    """
    device, backend = config.distributed.device, config.distributed.backend
    device = hardware.DEVICE if device == "auto" else device
    if device not in hardware.DEVICES:
        choices = " or ".join(hardware.DEVICES)
        raise UsageError(f"this project was made for hardware {hardware.NAME}: choose distributed.device {choices}")
    if backend == "auto":
        backend = transport.ON_CPU if device == "cpu" else transport.NAME
    if backend not in transport.CHOICES:
        choices = " or ".join(transport.CHOICES)
        raise UsageError(f"this project was made for backend {transport.NAME}: choose distributed.backend {choices}")
    if device == "cpu" and backend != transport.ON_CPU:
        raise UsageError(f"{backend} does not support CPUs: choose distributed.backend {transport.ON_CPU}, or auto")
    compressions = transport.COMPRESSIONS[backend]
    if config.distributed.compression not in compressions:
        choices = " or ".join(compressions)
        asked = config.distributed.compression
        raise UsageError(f"{backend} does not exchange {asked} here: choose distributed.compression {choices}")
    if config.distributed.strategy not in transport.STRATEGIES:
        choices = " or ".join(transport.STRATEGIES)
        raise UsageError(f"{backend} has no {config.distributed.strategy}: choose distributed.strategy {choices}")
    if not transport.BUCKETS and (config.distributed.bucket_mib != 25 or config.distributed.static_graph):
        raise UsageError(
            f"{backend} cuts gradients into parts itself: leave distributed.bucket_mib 25 and static_graph false"
        )
    if config.train.amp not in hardware.AMP:
        raise UsageError(f"train.amp {config.train.amp} does not work here: choose {' or '.join(hardware.AMP)}")
    if config.train.activation_checkpointing and not hardware.COMPUTES_AGAIN:
        raise UsageError("train.activation_checkpointing does not work here: leave it false")
    if config.train.compile and not hardware.COMPILES:
        raise UsageError("train.compile does not work here: leave it false")
    return replace(config, distributed=replace(config.distributed, backend=backend, device=device))


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return launcher.ranks() is not None


def local_command(nproc_per_node: int | None, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments``, a command and its options, on this machine.

    ``nproc_per_node`` is the number of processes; None: as many as the backend finds devices.
    """
    command, *options = arguments
    if nproc_per_node is not None:
        options = ["--distributed.nproc_per_node", str(nproc_per_node), *options]
    if nproc_per_node in (None, 1):
        return [sys.executable, "-m", PACKAGE, command, *options]
    return starter.local_command(nproc_per_node, [command, *options])


def checks(config: DistributedConfig, machine: bool = True, here: bool = False, starts: bool = True) -> Iterator[Check]:
    """Yield what this machine needs for the target, the most basic first.

    ``machine``: also what only torch can tell; ``here``: for processes of this machine alone; ``starts``: also what
    starts them.
    """
    if machine:
        hardware.hide_others(config.device)
        from . import backend

        yield from backend.checks(config)
        yield hardware.check(config.device, config.nproc_per_node or 1)
    if starts:
        yield from starter.checks() if here else launcher.checks()


def versions() -> dict[str, str]:
    """Return the versions of all that has to fit together."""
    import ignite
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__), "ignite": ignite.__version__}
    return {**found, **{name: metadata.version(name) for name in transport.PACKAGES}, **hardware.versions()}


def device_name() -> str:
    """Return what this process computes on, as people call it."""
    import ignite.distributed as idist
    import torch

    device = idist.device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def run(function: Callable[..., int], config: Config, *arguments: Any) -> int:
    """Run ``function(local_rank, config, *arguments)`` in every process of the training.

    Returns the exit code: what the function returned, or that of the UsageError that it raised, said once per node.

    Raises:
        UsageError: in a process of a launcher that this project was not made for.
    """
    if not launched():
        refuse_foreign_launchers(launcher.NAME)
    return starter.run(partial(_in_process, function, config, arguments), config.distributed)


def end_the_others(exit_code: int, ranks: Ranks | None) -> None:
    """End this process, which has failed, at once, if it would otherwise wait for the others, and they for it."""
    if transport.LEAVES_TOGETHER and ranks and ranks.world_size > 1:
        # What started the processes ends the others when it sees this one end.
        time.sleep(UNTIL_ENDED_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _in_process(function: Callable[..., int], config: Config, arguments: tuple[Any, ...]) -> int:
    """Join the other processes, run the function, tell why it failed, and leave them."""
    settings, ranks = config.distributed, launcher.ranks()
    # Imported below, where a failure is told like any other.
    finalize: Callable[[], None] | None = None
    lost_peer: Callable[[BaseException], str] = lambda error: ""
    silent_ranks: Callable[[], str] = str
    try:
        keep_freed_memory()
        hardware.hide_others(settings.device)
        import ignite.distributed as idist

        from . import backend

        finalize, lost_peer, silent_ranks = idist.finalize, backend.lost_peer, backend.silent_ranks
        wanted = settings.nproc_per_node
        if ranks:
            hardware.claim(settings.device, ranks.local_rank)
        elif wanted not in (None, 1):
            asked = f"{wanted} processes were asked for, but this one was started alone"
            raise UsageError(f"{asked}: leave out distributed.nproc_per_node, or train with scripts/train.sh")
        backend.join(settings, ranks)
        if wanted is not None and wanted != idist.get_nproc_per_node():
            started = idist.get_nproc_per_node()
            fix = f"ask for {started}, or run scripts/train.sh"
            raise UsageError(f"{processes([wanted])} per node asked for, {started} started: {fix}", 1)
        return function(idist.get_local_rank(), config, *arguments)
    except UsageError as error:
        local_rank = ranks.local_rank if ranks else 0
        if local_rank != error.local_rank and not isinstance(error, SampleError):
            # That one says it, and this one is ended meanwhile; unless it comes there much later, or has no such error.
            time.sleep(UNTIL_ENDED_S * (1 + local_rank))
        # Of what a loader process has raised, torch makes one text with its traceback.
        sentence = str(error).rstrip().rpartition(f"{type(error).__name__}: ")[2]
        say(f"error: {sentence}")
        sum_up(sentence)
        end_the_others(error.exit_code, ranks)
        return error.exit_code
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told below, by the process that can explain it
        tell(error, ranks.rank if ranks else 0, lost_peer(error), silent_ranks)
        end_the_others(1, ranks)
        return 1
    finally:
        # What still holds the process group (a wrapped model in a reference cycle) would abort the exit.
        gc.collect()
        if finalize:
            finalize()
