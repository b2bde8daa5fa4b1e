"""A study of Optuna in a folder, whose trials are runs. Several processes may share it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import IO, Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from ...config import Config
from ...runtime import UsageError, state
from ...runtime.process import EXIT_RESUMABLE
from ...runtime.state.records import Evaluations, read_records
from ...task import objective
from . import trials

SCORE = f"val_{objective.SCORE}"
# Any of Optuna's fits here.
PRUNERS = {"median": optuna.pruners.MedianPruner, "none": optuna.pruners.NopPruner}
# How long to wait for another process that writes to the study.
LOCK_S = 120.0
MOST_ROWS = 20
Outcome = Literal["completed", "pruned", "failed", "not started", "stopped"]


class Search:
    """The sweep in ``train.run_dir``, new or resumed.

    Args:
        size: number of trials, whichever process trains them.

    Raises:
        UsageError: if the folder has a sweep of other settings or ranges.
    """

    def __init__(self, config: Config, ranges: dict[str, BaseDistribution], size: int, pruner: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.ranges, self.size = Path(config.train.run_dir), ranges, size
        self.seed, self.error = config.train.seed, ""
        self.command = [*trials.command(config), *trials.share_settings(config, self.folder)]
        database = f"sqlite:///{(self.folder / 'study.db').absolute()}"
        storage = optuna.storages.RDBStorage(database, engine_kwargs={"connect_args": {"timeout": LOCK_S}})
        direction = StudyDirection.MAXIMIZE if objective.HIGHER_IS_BETTER else StudyDirection.MINIMIZE
        texts = {name: str(among) for name, among in ranges.items()}
        with self.locked():
            self.study = optuna.create_study(
                storage=storage, study_name="sweep", direction=direction, pruner=PRUNERS[pruner](), load_if_exists=True
            )
            if self.study.user_attrs.get("ranges", texts) != texts:
                raise UsageError(f"{self.folder} has a sweep of other ranges. Choose another train.run_dir.")
            self.study.set_user_attr("ranges", texts)

    def locked(self) -> closing[IO[str]]:
        """Keep other processes from starting trials inside a ``with`` block."""
        return closing(state.lock(self.folder / state.LOCK, LOCK_S))

    def known(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials of all processes, in some states or in any."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def completed(self) -> list[FrozenTrial]:
        """Return the completed trials, the best first."""
        score = lambda trial: trial.value or 0.0
        return sorted(self.known(TrialState.COMPLETE), key=score, reverse=objective.HIGHER_IS_BETTER)

    def has_more(self) -> bool:
        """Return whether trials are missing or unfinished."""
        return len(self.known()) < self.size or bool(self.known(TrialState.RUNNING))

    def run_of(self, number: int) -> Path:
        """Return the run directory of a trial."""
        return self.folder / f"trial-{number:04}"

    def take(self) -> tuple[Trial, IO[str]] | None:
        """Return a trial that a process left unfinished, or a new one, and the lock of its folder; None: there are enough."""
        with self.locked():
            for left in self.known(TrialState.RUNNING):
                if lock := trials.claim(self.run_of(left.number)):
                    return Trial(self.study, left._trial_id), lock
            if (count := len(self.known())) >= self.size:
                return None
            # A resumed sweep tries the same values as one that was not interrupted.
            self.study.sampler = optuna.samplers.TPESampler(seed=(self.seed + count) % 2**32)
            trial = self.study.ask(self.ranges)
            lock = trials.claim(self.run_of(trial.number))
            assert lock, "only the holder of the lock starts trials"
            return trial, lock

    def train(self, trial: Trial, signals: list[int]) -> Outcome:
        """Train a trial and record its outcome; one that was stopped remains unfinished."""
        number, run = trial.number, self.run_of(trial.number)
        # A process that was killed may have left some of them open.
        values = {name: trial._suggest(name, among) for name, among in self.ranges.items()}
        text = ", ".join(f"{name} {trials.shown(value)}" for name, value in values.items())
        print(f"trial {number}: {text}", flush=True)
        reported, hopeless = {*self.known()[number].intermediate_values}, False

        def is_hopeless() -> bool:
            nonlocal hopeless
            # Counted in evaluations, because trials may differ in the steps of an epoch.
            for evaluation, record in enumerate(evaluations(run).all, 1):
                if evaluation not in reported:
                    trial.report(record[SCORE], evaluation)
                    reported.add(evaluation)
                    hopeless = hopeless or trial.should_prune()
            return hopeless

        command = [*self.command, *(f"--{name}={value}" for name, value in values.items())]
        code, error = trials.train(command, run, signals, is_hopeless)
        is_hopeless()
        records = evaluations(run)
        outcome: Outcome = "failed" if (run / "config.yaml").exists() else "not started"
        if code == 0 and records.has_score():
            self.study.tell(number, records.best()[SCORE])
            outcome, text = "completed", f"{SCORE} {records.best()[SCORE]:.4g}"
        elif code and hopeless:
            self.study.tell(number, state=TrialState.PRUNED)
            outcome, text = "pruned", f"pruned after {len(reported)} evaluations"
        elif code and (signals or code == EXIT_RESUMABLE):
            return "stopped"
        else:
            self.study.tell(number, state=TrialState.FAIL)
            self.error = error if code else f"{SCORE} is NaN or inf"
            text = f"failed ({self.error}); see {run / trials.OUTPUT}"
        print(f"trial {number}: {text}", flush=True)
        self.write()
        return outcome

    def write(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Write trials.csv, the best trials first; return its titles and rows."""
        others = [trial for trial in self.known() if trial.state != TrialState.COMPLETE]
        titles: tuple[str, ...] = ("trial", "state", SCORE, "evaluations", *self.ranges)
        rows: list[tuple[Any, ...]] = []
        for trial in (*self.completed(), *others):
            values = [trial.params.get(name) for name in self.ranges]
            rows.append((trial.number, trial.state.name.lower(), trial.value, len(trial.intermediate_values), *values))
        trials.write_table(self.folder / "trials.csv", titles, rows)
        return titles, rows

    def show(self) -> None:
        """Print the best trials, and how to use the best one."""
        titles, rows = self.write()
        trials.print_table(titles, rows[:MOST_ROWS])
        completed = self.completed()
        print(f"{len(completed)} of {len(rows)} trials completed; all are in {self.folder / 'trials.csv'}")
        if completed:
            best = self.run_of(completed[0].number)
            print(f"settings of the best: {best / 'config.yaml'}")
            print(f"evaluate it: python3 -m {trials.PACKAGE} evaluate --checkpoint {best}")


def evaluations(run: Path) -> Evaluations:
    """Return the evaluations of a run so far."""
    records = Evaluations(SCORE, objective.HIGHER_IS_BETTER)
    records.all = read_records(run / "metrics.jsonl", 2**63, SCORE)
    return records
