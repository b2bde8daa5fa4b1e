"""The commands ``doctor``, ``exchange`` and ``shards``: is this machine ready, and who gets which samples?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch

from ..data import Order, TrainBatches
from ..process import exchange, hardware, launcher, local, start
from ..process.launch import planned_size, setting_checks
from . import Check, UsageError
from .summary import versions

PACKAGE = __name__.partition(".runtime.")[0]
LIMIT_S = 180.0
SHOWN_RANKS = 8


def doctor(config: Any, options: dict[str, Any]) -> int:
    """Print every check and the fix of the first that fails; return the exit code.

    If all is well, the processes that scripts/train.sh would start here time an all-reduce.
    """
    size = planned_size()
    nproc = config.distributed.nproc_per_node or size.nproc_per_node
    found = [Check("versions", True, ", ".join(f"{name} {version}" for name, version in versions().items()))]
    found += [
        *start.checks(config),
        *launcher.checks(),
        *setting_checks(config, size._replace(nproc_per_node=nproc).world_sizes()),
    ]
    if config.data.num_workers and os.path.isdir("/dev/shm"):
        stat = os.statvfs("/dev/shm")
        free_mib, fix = stat.f_bavail * stat.f_frsize // 2**20, "enlarge it (--shm-size) or set data.num_workers 0"
        found.append(Check("shared memory", free_mib >= 64, f"/dev/shm has {free_mib} MiB free", fix))
    if nproc != 1 and all(check.ok for check in found if check.name != "cluster"):
        found += all_reduce_here(config, nproc)
    failed = next((check for check in found if not check.ok), None)
    if options["json"]:
        rows = [{"name": check.name, "ok": check.ok, "found": check.found} for check in found]
        print(json.dumps({"ready": not failed, "fix": failed.fix if failed else "", "checks": rows}))
    else:
        print("".join(f"{'ok' if check.ok else 'NO':3} {check.name:18} {check.found}\n" for check in found))
        print(f"To do: {failed.fix}." if failed else "Ready: scripts/train.sh")
    return failed.exit_code if failed else 0


def all_reduce_here(config: Any, nproc: int | None) -> list[Check]:
    """Run ``exchange_tensors`` in processes of this machine; return what they measured."""
    command = [*local.prefix(nproc), sys.executable, "-m", PACKAGE, "exchange"]
    command += ["--distributed.device", config.distributed.device]
    command += ["--distributed.nproc_per_node", str(nproc), "--data.batch_size", str(nproc)] if nproc else []
    running = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True)
    try:
        output, errors = running.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        output, errors = "", f"error: no all-reduce within {LIMIT_S:.0f} s"
    if "{" in output:
        # Some launchers print the rank before each line.
        times = json.loads(output[output.index("{") : output.rindex("}") + 1])
        return [Check(name, True, text) for name, text in times.items()]
    lines = [line for line in errors.splitlines() if "error:" in line] or errors.splitlines() or ["no output"]
    return [Check("all-reduce", False, lines[0].strip(), "fix what the processes printed")]


def exchange_tensors(local_rank: int, config: Any, options: dict[str, Any]) -> int:
    """Time all-reduces between the processes of a run; rank 0 prints JSON."""
    times = {}
    for label, size in (("1 KiB", 2**10), ("64 MiB", 2**26)):
        tensor, seconds = torch.ones(size // 4, device=idist.device()), []
        for _ in range(5):
            started = time.perf_counter()
            exchange.average([tensor])
            hardware.synchronize()
            seconds.append(time.perf_counter() - started)
        milliseconds = sorted(seconds)[2] * 1e3
        times[f"all-reduce {label}"] = f"{milliseconds:.3g} ms over {idist.get_world_size()} processes"
    if idist.get_rank() == 0:
        print(json.dumps(times))
    return 0


def print_shards(size: int, batch_size: int, seed: int, world_size: int, order: Order | None = None) -> int:
    """Print which samples each of ``world_size`` ranks gets in the first two epochs; return the exit code.

    Raises:
        UsageError: if shares are not disjoint, complete and shuffled anew, which would be a bug.
    """
    orders, steps = [], size // batch_size
    print(f"{size} samples, global batch {batch_size}\n\nepoch  rank  samples  first")
    for epoch in range(2):
        shares = []
        for rank in range(world_size):
            batches = TrainBatches(size, batch_size, rank, world_size, seed, order)
            batches.start_at(epoch * steps)
            shares.append(np.concatenate([share.indices for share in batches]))
            if rank < SHOWN_RANKS:
                print(f"{epoch + 1:5}  {rank:4}  {len(shares[-1]):7}  {' '.join(map(str, shares[-1][:8]))}")
        if world_size > SHOWN_RANKS:
            print(f"{epoch + 1:5}   ...  {len(shares[-1]):7}  the same number on all {world_size} ranks")
        orders.append(np.concatenate(shares))
        if len({*orders[-1].tolist()}) != steps * batch_size and not order:
            raise UsageError(f"epoch {epoch + 1} repeats or lacks samples. Report this as a bug.", 1)
    if np.array_equal(orders[0], orders[1]):
        raise UsageError("both epochs have the same order. Report this as a bug.", 1)
    print(f"\n{steps} steps per epoch; {size - steps * batch_size} samples left out of each, different ones each time")
    print("the order is that of task/data.py" if order else "disjoint, complete and reshuffled: yes")
    return 0
