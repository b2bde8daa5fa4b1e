"""Start the processes of this machine without a launcher: MPI requires one."""

from __future__ import annotations

import os
import time
from typing import Any

from ..report import UsageError
from . import Ranks, launcher, ranks_from


def ranks() -> Ranks | None:
    """Return the ranks that Open MPI assigns, whatever the launcher of the project is."""
    return ranks_from([f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")])


def start(worker: Any, nproc: int | None) -> int:
    """Refuse to start processes.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"distributed.nproc_per_node is {nproc}, but processes of MPI need {launcher.NAME}. Start them with "
        f"NPROC_PER_NODE={nproc} scripts/train.sh."
    )


def prefix(nproc: int | None) -> list[str]:
    """Return what starts a command in ``nproc`` processes of this machine."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = getattr(launcher, "mpi_options", lambda: ["--oversubscribe", *root])
    return ["mpirun", *options(), "-n", str(nproc)] if nproc != 1 else []


def prepare_ignite() -> None:
    """Adapt ignite 0.5.5 to MPI.

    It counts the processes of a node over a gloo group, which cannot exist in an MPI world. And it ends the group at once,
    while torch's MPI thread may still need Python's lock to free the last tensor: a deadlock.
    """
    import ignite.distributed as idist
    import torch
    import torch.distributed as dist

    def count_over_mpi(self: Any) -> int:
        largest = torch.tensor([self.get_local_rank() + 1])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    model = idist.comp_models.native._NativeDistModel
    finalize = model.finalize

    def finalize_when_idle(self: Any) -> None:
        time.sleep(0.5)
        finalize(self)

    model._compute_nproc_per_node = count_over_mpi  # type: ignore[method-assign]
    model.finalize = finalize_when_idle  # type: ignore[method-assign]
