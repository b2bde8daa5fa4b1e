"""Which samples does each rank get? Answered from the training's own batches, without starting a process."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from .batches import TrainingBatches
from .binding import load_data
from .config import Config
from .errors import UsageError
from .introduction import title_of
from .tables import print_table

EPOCHS = 2
SHOWN_RANKS = 8


def shards(config: Config, world_size: int) -> int:
    """Print what each of ``world_size`` ranks reads in the first two epochs; return the exit code, 0 if all is well.

    Raises:
        UsageError: if the global batch is not divisible by the world size.
    """
    data = load_data(config)
    size = len(data.train)
    table = Table(title=f"{title_of(data)}: {size} samples, global batch {config.data.batch_size}", box=None)
    for title in ("epoch", "rank", "samples", "first ones"):
        table.add_column(title, justify="right" if title != "first ones" else "left")
    orders = []
    problems = []
    steps = 0
    for epoch in range(EPOCHS):
        shares = []
        for rank in range(world_size):
            batches = TrainingBatches(size, config.data.batch_size, rank, world_size, config.train.seed)
            steps = len(batches)
            batches.start_at(epoch * steps)
            shares.append(np.concatenate([share.indices for share in batches]))
            if rank < SHOWN_RANKS:
                first = " ".join(str(index) for index in shares[-1][:8])
                table.add_row(str(epoch + 1), str(rank), str(len(shares[-1])), first)
        if world_size > SHOWN_RANKS:
            table.add_row(str(epoch + 1), "...", str(len(shares[-1])), f"the same number on all {world_size} ranks")
        orders.append(np.concatenate(shares))
        counts = np.bincount(orders[-1], minlength=size)
        if counts.max() > 1:
            problems.append(f"epoch {epoch + 1} gives {int((counts > 1).sum())} samples more than once")
        if counts.sum() != steps * config.data.batch_size:
            problems.append(f"epoch {epoch + 1} gives {counts.sum()} samples, not {steps * config.data.batch_size}")
    if np.array_equal(orders[0], orders[1]):
        problems.append("both epochs have the same order")
    print_table(table)
    left_out = size - steps * config.data.batch_size
    print(f"\n{steps} steps per epoch; padding: 0; left out of each epoch, different ones each time: {left_out}")
    if problems:
        raise UsageError("; ".join(problems), 1)
    print("disjoint, complete and reshuffled: yes")
    return 0
