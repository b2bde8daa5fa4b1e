"""The command ``sweep``: Optuna proposes settings, and each trial is a run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ...config import Config
from ...runtime import UsageError
from ...runtime.process import EXIT_RESUMABLE, catching_stop_signals

# If so many trials in a row fail before their first step, the reason is not in their values.
MOST_FAILURES = 3


def sweep(config: Config, options: dict[str, Any]) -> int:
    """Train one trial after another until the sweep has ``--trials``; return the exit code.

    Raises:
        UsageError: for a setting or value that no run accepts, or if trials fail before their first step.
    """
    if not find_spec("optuna"):
        raise UsageError("sweep needs Optuna. Install it with python3 -m pip install -e '.[studies]'.", 1)
    from .ranges import read_ranges
    from .search import Search

    search = Search(config, read_ranges(options["ranges"], config), options["trials"], options["pruner"])
    failures, stopped = 0, False
    with catching_stop_signals() as signals:
        while not (stopped or signals) and (taken := search.take()):
            trial, lock = taken
            with lock:
                outcome = search.train(trial, signals)
            stopped = outcome == "stopped"
            failures = failures + 1 if outcome == "not started" else 0
            if failures == MOST_FAILURES:
                raise UsageError(f"{failures} trials in a row failed before their first step: {search.error}", 1)
    search.show()
    if (stopped or signals) and search.has_more():
        print("stopped; the same command resumes the sweep")
        return EXIT_RESUMABLE
    return 0 if search.completed() else 1
