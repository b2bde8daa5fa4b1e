"""Start a run, by the launcher or here; what each of its processes does first and last."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pkgutil
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..report import Check, SampleError, UsageError, report_failure, require, say, sentence
from . import (
    GRACE_S,
    Ranks,
    Size,
    at_exit,
    backend,
    hardware,
    launcher,
    local,
    number_from_environment,
    ranks_from,
)


def launch(program: str, parse: Callable[[list[str]], Any], arguments: list[str]) -> int:
    """Start ``python3 -m program train`` in every process; return the exit code, unless this process becomes the launcher.

    Args:
        parse: returns the settings for a list of options.

    Raises:
        UsageError: for settings, variables or a machine that cannot work.
    """
    given = [argument for argument in arguments if argument != "--dry-run"]
    size = planned_size()
    options = [*(["--distributed.nproc_per_node", str(size.nproc_per_node)] if size.nproc_per_node else []), *given]
    config = parse(options)
    resolved = resolve(config)
    if size.nproc_per_node != resolved.distributed.nproc_per_node:
        raise UsageError("the launcher sets distributed.nproc_per_node. Use NPROC_PER_NODE=... instead.")
    if launcher.ELSEWHERE and not Path("scripts").is_dir():
        raise UsageError("the job needs scripts/ in the current folder. Change to the project's folder first.")
    run_dir = config.train.run_dir if config.train.run_dir != type(config.train)().run_dir else None
    options = launcher.freeze(config, options)
    command = launcher.command(size, ["-m", program, "train", *options], run_dir)
    if not launcher.ELSEWHERE:
        variables = (f"{name}={os.environ.get(name, value)}" for name, value in hardware.ENVIRONMENT.items())
        command = ["env", *variables, *command]
    if "--dry-run" in arguments:
        print(shlex.join(command))
        return 0
    require(setting_checks(resolved, size.world_sizes()))
    require(launcher.checks())
    if backend.CHECKED_IN_LAUNCH and not launcher.ELSEWHERE and launcher.NAME != "spawn":
        kept = dict(os.environ)
        require(checks(resolved))
        # Imported packages may have set variables, which the run must not inherit.
        os.environ.clear()
        os.environ.update(kept)
    return launcher.start(command, Path(resolved.train.run_dir))


def planned_size() -> Size:
    """Return how many processes the launcher would start."""
    size = launcher.size(number_from_environment("NPROC_PER_NODE"))
    if size.nproc_per_node:
        return size
    return size._replace(nproc_per_node=hardware.default_nproc_per_node(here=not launcher.ELSEWHERE))


def run(load: Callable[[], Callable[..., int]], config: Any, options: dict[str, Any], arguments: list[str]) -> int:
    """Run a command in every process of this machine; return the exit code.

    Starts ``distributed.nproc_per_node`` processes unless a launcher has started this one.

    Args:
        load: imports the command's function of (local_rank, config, options).
        arguments: the command line, from the name of the command on.

    Raises:
        UsageError: if another launcher started this process, or the settings or this machine cannot work.
    """
    worker = Worker(load, config, options)
    if ranks():
        return worker()
    refuse_other_launchers()
    starts_itself = launcher.NAME == "spawn"
    nproc = config.distributed.nproc_per_node or (hardware.default_nproc_per_node() if starts_itself else 1)
    require(setting_checks(config, [nproc or 1]))
    if nproc == 1 or starts_itself:
        require(checks(config))
    return worker() if nproc == 1 else local.start(worker, nproc, arguments)


class Worker(NamedTuple):
    """The work of one process of a run; it can be pickled."""

    load: Any
    config: Any
    options: dict[str, Any]

    def __call__(self) -> int:
        """Join the other processes, run the command's function and leave; report a failure. Returns the exit code."""
        settings, mine = self.config.distributed, ranks()
        leave: Callable[[], None] = lambda: None
        lost_peer: Callable[[BaseException], str] = lambda error: ""
        try:
            keep_freed_memory()
            hardware.hide_others(settings.device)
            function = self.load()
            import ignite.distributed as idist

            from . import exchange

            leave, lost_peer = idist.finalize, exchange.lost_peer
            if mine:
                hardware.claim(settings.device, mine.local_rank)
            exchange.join(settings, mine)
            started, wanted = idist.get_nproc_per_node(), settings.nproc_per_node
            if wanted not in (None, started):
                raise UsageError(
                    f"distributed.nproc_per_node is {wanted}, but {started} were started on this node. Use scripts/train.sh."
                )
            configure_packs(self.config)
            code: int = function(idist.get_local_rank(), self.config, self.options)
            return code
        except UsageError as error:
            local_rank = mine.local_rank if mine else 0
            if local_rank != error.local_rank and not isinstance(error, SampleError):
                # The process with that local rank prints it and ends this one, unless it does not have the error.
                time.sleep(GRACE_S * (1 + local_rank))
            say(f"error: {sentence(error)}")
            end_at_once(error.exit_code, mine)
            return error.exit_code
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported here, with rank and step
            report_failure(error, mine.rank if mine else 0, lost_peer(error))
            end_at_once(1, mine)
            return 1
        finally:
            while at_exit:
                at_exit.pop()()
            # A model in a reference cycle still holds the process group, which would abort the exit.
            gc.collect()
            if backend.LEAVES_TOGETHER:
                # MPI's own thread may need the GIL to free the last tensor: a deadlock.
                time.sleep(0.5)
            leave()


def end_at_once(exit_code: int, mine: Ranks | None) -> None:
    """Exit without leaving the process group, if leaving would wait for the other processes."""
    if backend.LEAVES_TOGETHER and mine and mine.world_size > 1:
        time.sleep(GRACE_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def keep_freed_memory() -> None:
    """Make glibc keep up to 1 GiB of freed memory: returned to the system, it would be zeroed again in every step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        m_trim_threshold, m_mmap_threshold = -1, -3
        # Larger blocks would fragment the heap.
        mallopt(m_mmap_threshold, 2**25)
        mallopt(m_trim_threshold, 2**30)


def ranks() -> Ranks | None:
    """Return which process this is, or None if no launcher started it."""
    of_torch = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    found = map(ranks_from, (*backend.RANK_VARIABLES, of_torch, *launcher.RANK_VARIABLES))
    return next((one for one in found if one), None)


def refuse_other_launchers() -> None:
    """Raise UsageError if an unknown launcher started this process as one of several: each would train alone."""
    names = [name for name in os.environ if re.fullmatch(r"\w+(?<!NODE)_RANK(ID)?", name)]
    alone = any(os.environ.get(name) == "1" for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        names.append("SLURM_PROCID")
    if names and not alone:
        raise UsageError(
            f"{names[0]} is set by a launcher other than {launcher.NAME}, so each process would train alone. Start the run "
            "with scripts/train.sh."
        )


def resolve(config: Any) -> Any:
    """Return the settings with "auto" replaced by the device and the backend of this project.

    Raises:
        UsageError: for a backend, device or precision that this project does not support.
    """
    device, name = config.distributed.device, config.distributed.backend
    device = hardware.DEVICE if device == "auto" else device
    require_choice("distributed.device", device, hardware.DEVICES)
    if name == "auto":
        name = backend.ON_CPU if device == "cpu" else backend.NAME
    require_choice("distributed.backend", name, [backend.ON_CPU] if device == "cpu" else backend.CHOICES)
    require_choice("train.amp", config.train.amp, hardware.AMP)
    if config.train.compile and not hardware.COMPILES:
        raise UsageError("train.compile does not work on this hardware. Set it to false.")
    return replace(config, distributed=replace(config.distributed, backend=name, device=device))


def require_choice(setting: str, value: str, choices: Iterable[str]) -> None:
    """Raise UsageError if this project does not support the value of a setting."""
    if value not in choices:
        raise UsageError(f"{setting} {value} is not supported by this project. Use {' or '.join(choices)}.")


def setting_checks(config: Any, world_sizes: list[int]) -> Iterator[Check]:
    """Yield a check for each world size: it must divide the global batch."""
    parts = config.optim.accumulation_steps
    for world_size in world_sizes:
        unit, batch_size = world_size * parts, config.data.batch_size
        lower = max(batch_size // unit, 1) * unit
        times = f" x {parts} accumulation steps" if parts > 1 else ""
        processes = f"{world_size} process{'es' * (world_size > 1)}{times}"
        if batch_size % unit:
            found = f"data.batch_size {batch_size} is not divisible by {processes}"
            yield Check("global batch", False, found, f"use {lower} or {lower + unit}", 2)
        else:
            yield Check("global batch", True, f"{batch_size} samples over {processes}")


def checks(config: Any) -> list[Check]:
    """Return the checks of the backend and of the devices of this machine."""
    hardware.hide_others(config.distributed.device)
    from . import exchange

    nproc = config.distributed.nproc_per_node or 1
    return [*exchange.checks(config.distributed), hardware.check(config.distributed.device, nproc)]


def find_packs() -> list[Any]:
    """Return the modules of ``packs/`` in the package.

    Each may have COMMANDS, SECTIONS (of settings), and ``configure(config)``, called in every process of a run and before
    a command that reads a checkpoint.
    """
    package = __name__.partition(".runtime.")[0]
    folder = Path(__file__).parents[2] / "packs"
    return [importlib.import_module(f"{package}.packs.{module.name}") for module in pkgutil.iter_modules([str(folder)])]


def configure_packs(config: Any) -> None:
    """Prepare each pack for these settings."""
    for pack in find_packs():
        getattr(pack, "configure", lambda config: None)(config)
