"""How the settings of a training differ from those of an earlier one, and whether that matters."""

from __future__ import annotations

from typing import NamedTuple

Settings = dict[str, dict[str, object]]

# Settings that change where and how fast a training runs, not what it learns; four more depend on the strategy.
HARMLESS = {
    "data.num_workers",
    *(f"train.{name}" for name in ("resume", "run_dir", "async_save", "activation_checkpointing", "profile")),
    *(f"distributed.{name}" for name in ("backend", "device", "bucket_mib", "static_graph", "timeout_s")),
}


class Change(NamedTuple):
    """A setting, ``section.field``, that had another value before."""

    name: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


def changed_settings(old: Settings, new: Settings) -> list[Change]:
    """Return the settings of ``new`` that differ from ``old``."""
    return [
        Change(f"{section}.{name}", old.get(section, {}).get(name), value)
        for section, values in new.items()
        for name, value in values.items()
        if old.get(section, {}).get(name) != value
    ]


def changes_results(change: Change, strategy: str) -> bool:
    """Tell whether a change is of what a training learns, not only of where and how fast.

    Args:
        strategy: ``distributed.strategy``.
    """
    if change.name == "distributed.strategy":
        return "local-sgd" in (change.old, change.new)
    if change.name in ("distributed.nproc_per_node", "train.log_every", "train.save_every"):
        # Each process learns by itself, and they average at log points and saves too.
        return strategy == "local-sgd"
    return change.name not in HARMLESS
