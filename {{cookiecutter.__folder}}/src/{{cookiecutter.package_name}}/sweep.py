"""Search for good settings: optuna proposes them, and each trial is a training that the project's launcher starts."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import optuna
import yaml
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.table import Table

from . import storage, trials
from .changes import Change, changed_settings, changes_results
from .config import EXIT_RESUMABLE, PACKAGE, Config, to_dict
from .distributed import launcher
from .errors import UsageError
from .launch import frozen_file, planned_size, size_here
from .ranges import Range, Values, check_ranges, plain, read_ranges
from .tables import print_table
from .task import objective

SCORE = f"val_{objective.SCORE}"
# Compares evaluations of the same number, after five trials; others of optuna fit here as well.
PRUNER = optuna.pruners.MedianPruner()
# How long to wait for processes that choose a trial, or write to the study, at the same time.
PATIENCE_S = 120.0
# When so many trainings in a row have not begun, something other than their settings is wrong.
MOST_NOT_BEGUN = 3
MOST_ROWS = 20


def sweep(config: Config, arguments: list[str], words: list[str], options: dict[str, Any]) -> int:
    """Train one trial after another until the study has as many as were asked for; return the exit code.

    Args:
        arguments: all of this command's, for the jobs of a cluster.
        words: settings with what they may be, and files of them.
        options: ``trials`` of the study in all, ``pruner``, ``storage``, and whether to train ``here``.

    Raises:
        UsageError: if it cannot begin, or a trial shows that no other can work.
    """
    ranges, here = read_ranges(words), bool(options["here"])
    if options["trials"] < 1:
        raise UsageError(f"--trials must be at least 1, not {options['trials']}")
    command = trials.command_of_each(here)
    size = size_here() if here else planned_size()
    # Inside a job, it is the job that says how many processes there are.
    in_job = launcher.ELSEWHERE and not here and command is not None
    check_ranges(config, ranges, [] if in_job else size.world_sizes())
    if command is None:
        options_given = [argument for argument in arguments if argument not in words]
        return trials.submit(config, ["sweep", *options_given, frozen_file(plain(ranges))])
    study = Sweep(config, ranges, command, options)
    stopped = False
    with trials.stop_signals() as signals:
        while not (stopped or signals) and (taken := study.take()):
            trial, values, claim = taken
            with claim:
                stopped = study.conduct(trial, values, signals)
    study.show()
    if stopped or (signals and study.is_left()):
        print("stopped: the same command resumes")
        return EXIT_RESUMABLE
    if others := study.numbers_of(TrialState.RUNNING):
        print(f"others are training trial {', '.join(map(str, others))}")
    return 0 if study.trained_to_the_end() or others else 1


class Sweep:
    """A study of optuna in a folder, which several processes may share."""

    def __init__(self, config: Config, ranges: dict[str, Values], command: list[str], options: dict[str, Any]) -> None:
        """Begin the study, or resume it.

        Raises:
            UsageError: if the folder cannot be written, or its study has other settings.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.ranges, self.command = Path(config.train.run_dir), ranges, command
        self.most, self.prunes, self.seed = options["trials"], options["pruner"] == "median", config.train.seed
        self.not_begun = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock, lacking = storage.lock(self.folder / storage.LOCK, PATIENCE_S)
        except OSError as error:
            raise UsageError(
                f"train.run_dir {self.folder} cannot be written ({error.strerror}): choose another one", 1
            ) from None
        if lacking:
            print(f"warning: {self.folder} cannot be locked ({lacking}): let no other sweep run there")
        with lock:
            self.refuse_changes(config)
            self.settings = trials.keep_settings(config, self.folder)
            storage.write(self.folder / "ranges.yaml", yaml.safe_dump(plain(self.ranges), sort_keys=False))
            self.study = open_study(self.folder, options["storage"])

    def refuse_changes(self, config: Config) -> None:
        """Refuse settings that would make these trials differ from those before in more than what is tried.

        Raises:
            UsageError: with the settings that differ.
        """
        files = [self.folder / name for name in ("settings.yaml", "ranges.yaml")]
        if not all(file.exists() for file in files):
            return
        settings, old = map(storage.read_settings, files)
        strategy = config.distributed.strategy
        changed = changed_settings(settings, to_dict(config))
        changes = [change for change in changed if changes_results(change, strategy)]
        new = plain(self.ranges)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changes += [Change(name, old.get(name), new.get(name)) for name in names]
        if changes:
            fix = "choose another train.run_dir, or the settings from before"
            raise UsageError(f"{self.folder} holds a sweep with other settings ({', '.join(map(str, changes))}): {fix}")

    def run_of(self, number: int) -> Path:
        """Return the run directory of a trial."""
        return self.folder / f"trial-{number:04}"

    def take(self) -> tuple[Trial, dict[str, Any], IO[str]] | None:
        """Return a trial that somebody has left, or a new one: its values, and the claim to its folder. None: no more."""
        with closing(storage.lock(self.folder / storage.LOCK, PATIENCE_S)[0]):
            known = self.study.get_trials(deepcopy=False)
            for left in known:
                if left.state == TrialState.RUNNING and (claim := trials.claim(self.run_of(left.number))):
                    trial = Trial(self.study, left._trial_id)
                    return trial, self.suggest(trial), claim
            if len(known) >= self.most:
                return None
            # The same draws, whether the sweep was interrupted or not; other ones in processes beside this one.
            self.study.sampler = optuna.samplers.TPESampler(seed=(self.seed + len(known)) % 2**32)
            trial = self.study.ask()
            claim = trials.claim(self.run_of(trial.number))
            assert claim, "only who holds the lock of the study makes trials"
            return trial, self.suggest(trial), claim

    def is_left(self) -> bool:
        """Tell whether there is a trial to train, or one that somebody is training."""
        known = self.study.get_trials(deepcopy=False)
        return len(known) < self.most or any(trial.state == TrialState.RUNNING for trial in known)

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return the values of a trial: those that it has already, or new ones."""
        values: dict[str, Any] = {}
        for name, among in self.ranges.items():
            if not isinstance(among, Range):
                values[name] = trial.suggest_categorical(name, among)
            elif among.whole:
                values[name] = trial.suggest_int(name, int(among.low), int(among.high), log=among.log)
            else:
                values[name] = trial.suggest_float(name, among.low, among.high, log=among.log)
        return values

    def conduct(self, trial: Trial, values: dict[str, Any], signals: list[int]) -> bool:
        """Train a trial and tell the study how it ended; return whether it was interrupted, and is to be resumed.

        Raises:
            UsageError: if its settings are refused, or several trainings in a row have not even begun.
        """
        run, number = self.run_of(trial.number), trial.number
        print(f"trial {number}: {', '.join(f'{name} {shown(value)}' for name, value in values.items())}", flush=True)
        reported = set(self.study.get_trials(deepcopy=False)[number].intermediate_values)
        hopeless = False

        def look() -> bool:
            nonlocal hopeless
            # Counted by evaluations: trials may differ in the steps of an epoch.
            for evaluation, score in enumerate(scores(run), 1):
                if evaluation not in reported:
                    trial.report(score, evaluation)
                    reported.add(evaluation)
                    # Once it is being stopped, an evaluation that comes in between changes nothing.
                    hopeless = hopeless or (self.prunes and trial.should_prune())
            return hopeless

        settings = [*self.settings, *(f"--{name}={value}" for name, value in values.items())]
        ended = trials.train(self.command, settings, run, signals, look)
        look()
        score = math.nan if ended.code else best_score(run)
        if math.isfinite(score):
            self.study.tell(number, score)
            said = f"{SCORE} {score:.4g}"
        elif ended.code and hopeless:
            self.study.tell(number, state=TrialState.PRUNED)
            said = f"pruned at evaluation {len(reported)}"
        elif signals or ended.code == EXIT_RESUMABLE:
            # For optuna it still runs: whoever looks for a trial next takes it up.
            return True
        else:
            self.study.tell(number, state=TrialState.FAIL)
            said = f"failed: {ended.why if ended.code else f'{SCORE} is not a number'}; see {run / trials.OUTPUT}"
            self.not_begun = 0 if (run / "config.yaml").exists() else self.not_begun + 1
            if ended.code == 2:
                raise UsageError(ended.why)
            if self.not_begun == MOST_NOT_BEGUN:
                raise UsageError(f"{MOST_NOT_BEGUN} trainings in a row did not begin: {ended.why}", 1)
        print(f"trial {number}: {said}", flush=True)
        self.write()
        return False

    def trained_to_the_end(self) -> list[FrozenTrial]:
        """Return the trials that have a score, the best first."""
        done = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        return sorted(done, key=lambda trial: trial.value or 0.0, reverse=objective.HIGHER_IS_BETTER)

    def numbers_of(self, state: TrialState) -> list[int]:
        """Return the trials in a state."""
        return [trial.number for trial in self.study.get_trials(deepcopy=False, states=[state])]

    def write(self) -> list[tuple[Any, ...]]:
        """Write trials.csv, the best ones first; return its lines."""
        done = self.trained_to_the_end()
        others = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.COMPLETE]
        lines: list[tuple[Any, ...]] = [("trial", "state", SCORE, "evaluations", *self.ranges)]
        for trial in (*done, *others):
            values = [trial.params.get(name) for name in self.ranges]
            lines.append((trial.number, trial.state.name.lower(), trial.value, len(trial.intermediate_values), *values))
        storage.write_table(self.folder / "trials.csv", lines[0], lines[1:])
        return lines

    def show(self) -> None:
        """Print the trials, the best ones first, and what to do with the best."""
        titles, *rows = self.write()
        table = Table(*titles, box=None, pad_edge=False)
        for row in rows[:MOST_ROWS]:
            table.add_row(*map(shown, row))
        print_table(table)
        done = self.trained_to_the_end()
        print(f"{len(done)} of {len(rows)} trials were trained to the end; all are in {self.folder / 'trials.csv'}")
        if done:
            best = self.run_of(done[0].number)
            place, option = trials.place_of("runs/best")
            print(f"the best:    python3 -m {PACKAGE} evaluate --checkpoint {best}")
            print(f"train it so: {place}scripts/train.sh --config {best / 'config.yaml'}{option}")


def open_study(folder: Path, kind: str) -> optuna.Study:
    """Return the study of a folder; a new one is kept by SQLite or, as ``kind`` "journal", in a log."""
    place: Any
    log, database = folder / "study.log", folder / "study.db"
    if log.exists() or (kind == "journal" and not database.exists()):
        place = JournalStorage(JournalFileBackend(str(log)))
    else:
        waits = {"connect_args": {"timeout": PATIENCE_S}}
        place = RDBStorage(f"sqlite:///{database.absolute()}", engine_kwargs=waits)
    direction = StudyDirection.MAXIMIZE if objective.HIGHER_IS_BETTER else StudyDirection.MINIMIZE
    return optuna.create_study(
        storage=place, study_name="sweep", direction=direction, pruner=PRUNER, load_if_exists=True
    )


def scores(run: Path) -> list[float]:
    """Return the score of each evaluation until now."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [float(storage.from_json(line)[SCORE]) for line in lines]


def best_score(run: Path) -> float:
    """Return the best score of a finished run; not a number, if none of its evaluations has one."""
    best = json.loads((run / "summary.json").read_text()).get("best") or {}
    score = best.get(SCORE)
    return math.nan if score is None else float(score)


def shown(value: object) -> str:
    """Return a value as a table shows it."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
