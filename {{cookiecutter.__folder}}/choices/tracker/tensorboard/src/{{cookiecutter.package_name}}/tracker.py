"""Who else is told of every evaluation, beside the run directory's own files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Listener = Callable[[dict[str, Any]], None]


def listeners(folder: Path) -> list[Listener]:
    """Return what shows every record of a run in TensorBoard: ``tensorboard --logdir runs``."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / "tensorboard")

    def listen(record: dict[str, Any]) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, record["iteration"])
        writer.flush()

    return [listen]
