"""Is this machine ready to train? One line for each check, and the fix for the first one that fails."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ignite.distributed as idist
import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from . import collectives, connectivity, distributed, early_signals
from .checks import Check, processes, require
from .config import Averaging, Config, to_options
from .distributed import backend
from .launch import planned_size, possible_world_sizes, setting_checks, size_here
from .tables import print_table

# bytes of the larger of two all-reduces
LARGE = 64 * 2**20
EXCHANGE_LIMIT_S = 120.0
# How much longer for each process: many may share few cores, and each imports torch.
START_S = 5


def examine(config: Config, world_sizes: Sequence[int], starts: bool = True) -> Iterator[Check]:
    """Yield every check that one process can make alone, for each number of processes that there may be.

    Without ``starts``, none of what is needed to start other processes.
    """
    yield Check("versions", True, ", ".join(f"{name} {version}" for name, version in distributed.versions().items()))
    yield from distributed.checks(config.distributed, starts=starts)
    yield from setting_checks(config, world_sizes)


def preflight(config: Config) -> None:
    """Raise UsageError with the first check that fails, in one sentence; ``train`` runs it before it starts processes."""
    sizes = possible_world_sizes(config.distributed)
    require(examine(config, sizes, starts=sizes != [1]))


def doctor(config: Config, as_json: bool = False, quiet: bool = False) -> int:
    """Print every check and the fix of the first that fails; return the exit code.

    If all is well so far, as many processes as ``scripts/train.sh`` would start here exchange tensors. Run in
    processes that a launcher has started, on many nodes for example, those exchange them.

    Raises:
        UsageError: if ``quiet``, with the first check that fails, and without an exchange.
    """
    if distributed.launched():
        return distributed.run(exchange, config, as_json)
    # None: as many as the backend finds devices.
    nproc_per_node = config.distributed.nproc_per_node or size_here().nproc_per_node
    config = replace(config, distributed=replace(config.distributed, nproc_per_node=nproc_per_node))
    examined = examine(config, planned_size(nproc_per_node).world_sizes())
    if quiet:
        require(examined)
        return 0
    checks = list(examined)
    measured: dict[str, Any] = {}
    # Processes of this machine can exchange without the cluster.
    if nproc_per_node != 1 and all(check.ok for check in checks if check.name != "cluster"):
        measured = measure_here(config, nproc_per_node)
        checks += _exchange_checks(measured)
    failed = next((check for check in checks if not check.ok), None)
    _print(checks, measured, as_json)
    return failed.exit_code if failed else 0


def exchange(local_rank: int, config: Config, as_json: bool = True) -> int:
    """Time all-reduces between the processes of a launcher and compare their weights; rank 0 prints the result."""
    early_signals.forget()
    world_size = idist.get_world_size()
    device = idist.device().type
    measured: dict[str, Any] = {"world_size": world_size, "nnodes": idist.get_nnodes(), "device": device}
    mine = {"host": platform.node(), **distributed.versions()}
    # The versions first: where they differ, what comes next may fail, and they say why.
    everyones = backend.all_gather_object(mine)
    measured["hosts"] = sorted({other["host"] for other in everyones})
    measured["versions_differ"] = {
        name: [other.get(name) for other in everyones]
        for name in mine
        if name != "host" and len({other.get(name) for other in everyones}) > 1
    }
    measured["weights_difference"] = _weights_difference_after_a_step(config)
    measured["all_reduce"] = connectivity.time_all_reduce(LARGE)
    # Other devices have other ways than the network of their hosts.
    if device == "cpu" and world_size > 1:
        measured["stream_gb_per_s"] = connectivity.stream_speed() / 1e9
    checks = list(_exchange_checks(measured))
    if idist.get_rank() == 0:
        _print(checks, measured, as_json)
    return 0 if all(check.ok for check in checks) else 1


def _weights_difference_after_a_step(config: Config) -> float:
    """Train one step from other weights and other data in each process; return by how much they differ then."""
    torch.manual_seed(idist.get_rank())
    layer = nn.Linear(16, 16)
    model = backend.wrap_model(layer, Averaging())
    optimizer = backend.wrap_optimizer(torch.optim.SGD(layer.parameters(), 0.1), layer, Averaging())
    model(torch.randn(8, 16, device=idist.device())).square().mean().backward()
    backend.optimizer_step(optimizer, torch.amp.GradScaler(enabled=False))
    return collectives.weights_difference(layer)


def measure_here(config: Config, nproc_per_node: int | None) -> dict[str, Any]:
    """Let processes of this machine exchange tensors; return what they measured, or what went wrong as ``error``."""
    more_s = START_S * (nproc_per_node or 0)
    limit_s = EXCHANGE_LIMIT_S + more_s
    settings = {
        "distributed.backend": config.distributed.backend,
        "distributed.device": config.distributed.device,
        "distributed.timeout_s": 60 + more_s,
    }
    command = distributed.local_command(nproc_per_node, ["doctor", "--exchange", *to_options(settings)])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as expired:
            os.killpg(process.pid, signal.SIGKILL)
            said = (expired.stderr or b"").decode(errors="replace").strip().splitlines()
            last = f" (the last that they said: {said[-1].strip()})" if said else ""
            found = f"the processes did not find each other, and exchange, within {limit_s:.0f} s{last}"
            return {"error": found, "fix": "end what keeps this machine busy, or start fewer processes"}
    if "{" not in output:
        said = [line for line in errors.splitlines() if "error:" in line.lower()] or errors.splitlines()
        return {"error": said[0].strip() if said else f"{command[0]} ended with {process.returncode}"}
    # Some launchers write the rank before each line.
    measured: dict[str, Any] = json.loads(output[output.index("{") : output.rindex("}") + 1])
    return {name: value for name, value in measured.items() if name not in ("ready", "fix", "checks")}


def _exchange_checks(measured: dict[str, Any]) -> Iterator[Check]:
    if "error" in measured:
        yield Check("exchange", False, measured["error"], measured.get("fix", "fix what the processes said, above"))
        return
    differ = measured["versions_differ"]
    found = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in differ.items())
    yield Check("same versions", not differ, found or "on every process", "install the same on every node")
    for result in measured["all_reduce"]:
        size = f"{result['bytes'] >> 20} MB" if result["bytes"] >= 2**20 else f"{result['bytes'] >> 10} KB"
        found = f"{result['milliseconds']:.3g} ms over {processes([measured['world_size']])}"
        bandwidth, stream = result["bus_bandwidth_gb_per_s"], measured.get("stream_gb_per_s")
        found += f", bus bandwidth {bandwidth:.2g} GB/s"
        if stream and result["bytes"] == LARGE:
            found += f", {bandwidth / stream:.0%} of the {stream:.2g} GB/s of one TCP connection"
        yield Check(f"all-reduce {size}", True, found)
    difference = measured["weights_difference"]
    found = "equal on every process after a step" if not difference else f"differ by {difference:g} after a step"
    yield Check("weights", not difference, found, "check how distributed/backend.py wraps the model")


def _print(checks: list[Check], measured: dict[str, Any], as_json: bool) -> None:
    """Print a table and what to do next, or one JSON object."""
    failed = next((check for check in checks if not check.ok), None)
    if as_json:
        said = [{"name": check.name, "ok": check.ok, "found": check.found} for check in checks]
        print(json.dumps({"ready": failed is None, "fix": failed.fix if failed else "", "checks": said, **measured}))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found"):
        table.add_column(title)
    for check in checks:
        table.add_row(check.name, Text("ok", "green") if check.ok else Text("no", "red"), check.found)
    print_table(table)
    print(f"\nTo do: {failed.fix}." if failed else "\nReady: scripts/train.sh")
