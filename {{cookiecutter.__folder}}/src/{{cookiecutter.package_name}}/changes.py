"""How the settings of a training differ from those of an earlier one, and whether that matters."""

from __future__ import annotations

Settings = dict[str, dict[str, object]]

# Settings that change where and how fast a training runs, not what it learns; three more depend on the strategy.
HARMLESS = {
    "data.num_workers",
    *(f"train.{name}" for name in ("resume", "run_dir", "async_save")),
    *(f"distributed.{name}" for name in ("backend", "device", "bucket_mib", "static_graph", "timeout_s")),
}


def changed_settings(old: Settings, new: Settings) -> list[str]:
    """List the settings of ``new`` that differ from ``old`` as ``section.field old -> new``."""
    return [
        f"{section}.{name} {old.get(section, {}).get(name)} -> {value}"
        for section, values in new.items()
        for name, value in values.items()
        if old.get(section, {}).get(name) != value
    ]


def changes_results(change: str, strategy: str) -> bool:
    """Tell whether a change, as ``changed_settings`` lists it, is of what a training learns, not only of where and how fast.

    Args:
        strategy: ``distributed.strategy``.
    """
    name, _, values = change.partition(" ")
    if name == "distributed.strategy":
        return "local-sgd" in values
    if name in ("distributed.nproc_per_node", "train.log_every"):
        # Each process learns by itself, and they average at log points too.
        return strategy == "local-sgd"
    return name not in HARMLESS
