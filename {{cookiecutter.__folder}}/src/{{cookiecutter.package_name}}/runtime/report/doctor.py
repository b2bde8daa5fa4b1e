"""The commands ``doctor`` and ``shards``: is this machine ready, and which samples does each rank get?"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from ..data import Order, TrainBatches
from ..process import launcher, start
from . import Check
from .summary import versions

SHOWN_RANKS = 8


def doctor(config: Any, options: dict[str, Any]) -> int:
    """Print every check of this machine, and the fix of the first that fails; return the exit code."""
    size = start.planned_size()
    nproc = config.distributed.nproc_per_node or size.nproc_per_node
    found = [
        Check("versions", True, ", ".join(f"{name} {version}" for name, version in versions().items())),
        *start.checks(config),
        *launcher.checks(),
        *start.setting_checks(config, size._replace(nproc_per_node=nproc).world_sizes()),
    ]
    if config.data.num_workers and os.path.isdir("/dev/shm"):
        stat = os.statvfs("/dev/shm")
        free_mib, fix = stat.f_bavail * stat.f_frsize // 2**20, "enlarge it (--shm-size) or set data.num_workers 0"
        found.append(Check("shared memory", free_mib >= 64, f"/dev/shm has {free_mib} MiB free", fix))
    failed = next((check for check in found if not check.ok), None)
    if options["json"]:
        rows = [{"name": check.name, "ok": check.ok, "found": check.found} for check in found]
        print(json.dumps({"ready": not failed, "fix": failed.fix if failed else "", "checks": rows}))
    else:
        print("".join(f"{'ok' if check.ok else 'NO':3} {check.name:18} {check.found}\n" for check in found))
        print(f"To do: {failed.fix}." if failed else "Ready: scripts/train.sh")
    return failed.exit_code if failed else 0


def print_shards(size: int, batch_size: int, seed: int, world_size: int, order: Order | None = None) -> int:
    """Print which samples each of ``world_size`` ranks gets in the first two epochs; return the exit code."""
    steps = size // batch_size
    print(f"{size} samples, global batch {batch_size}\n\nepoch  rank  samples  first")
    for epoch in range(2):
        for rank in range(min(world_size, SHOWN_RANKS)):
            batches = TrainBatches(size, batch_size, rank, world_size, seed, order)
            batches.start_at(epoch * steps)
            shard = np.concatenate([share.indices for share in batches])
            print(f"{epoch + 1:5}  {rank:4}  {len(shard):7}  {' '.join(map(str, shard[:8]))}")
        if world_size > SHOWN_RANKS:
            print(f"{epoch + 1:5}   ...  {len(shard):7}  the same number on all {world_size} ranks")
    print(f"\n{steps} steps per epoch; {size - steps * batch_size} samples left out of each, different ones each time")
    return 0
