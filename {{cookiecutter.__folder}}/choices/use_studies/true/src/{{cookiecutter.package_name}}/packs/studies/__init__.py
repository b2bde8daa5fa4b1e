"""Studies: many runs that differ in one thing. The commands ``scaling``, ``sweep`` and ``seeds``; docs/studies.md."""

from __future__ import annotations

from typing import Any

from ...runtime import Command

SCALING: dict[str, dict[str, Any]] = {
    "--processes": {"type": str, "default": "1,2", "help": "numbers of processes on this machine, such as 1,2,4"},
    "--batches": {"type": str, "default": "16,64,256", "help": "global batches, such as 64,128,256"},
    "--steps": {"type": int, "default": 50, "help": "measured steps of each run"},
    "--preset": {"choices": ["batch-crossover"], "help": "batches from 2 to 6144 instead of --batches"},
    "--simulate": {"action": "store_true", "help": "show the memory that one rank of --world-size would need"},
    "--world-size": {"type": int, "default": 512, "help": "number of simulated ranks"},
}
SWEEP: dict[str, dict[str, Any]] = {
    "ranges": {"type": str, "nargs": "*", "help": "what to try, such as optim.lr=1e-4..1e-1,log data.batch_size=32,64"},
    "--trials": {"type": int, "default": 20, "help": "trials of the whole sweep"},
    "--pruner": {"choices": ["median", "none"], "default": "median", "help": "which trials to stop early"},
}
SEEDS: dict[str, dict[str, Any]] = {
    "seeds": {"type": str, "nargs": "?", "default": "", "help": "such as 0-4 or 0,1,2; none: only the table"},
}

COMMANDS = {
    "scaling": Command(
        "Measure speed over processes and batch sizes.",
        "packs.studies.scaling:scaling",
        SCALING,
        {"train.run_dir": "runs/scaling"},
    ),
    "sweep": Command("Search for good settings.", "packs.studies.sweep:sweep", SWEEP, {"train.run_dir": "runs/sweep"}),
    "seeds": Command("Train with several seeds.", "packs.studies.seeds:seeds", SEEDS, {"train.run_dir": "runs/seeds"}),
}
