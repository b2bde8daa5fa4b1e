"""Many trainings: what a sweep tries, prunes and resumes, and the table of several seeds."""

import csv
import importlib.util
import json
import signal
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, call
from frame import distributed, early_signals, errors, ranges, seeds, trials

needs_optuna = pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="pip install -e '.[sweep]'")
# One step an epoch of 64 samples: they are about starting and ending.
SHORT = ("--task.train_size", "64", "--task.val_size", "64", "--train.epochs", "2", "--train.log_every", "1")

# Takes the place of a training: five evaluations, of what the test says about the trial of this number.
TRAINING = """\
import json, os, pathlib, shutil, signal, sys, time
plan = json.loads(PLAN)
given = dict(word[2:].split("=", 1) for word in sys.argv if "=" in word)
run = pathlib.Path(given["train.run_dir"])
with (run / "starts").open("a") as starts:
    print(given.get("optim.lr"), file=starts)
start = len((run / "starts").read_text().splitlines())
told = plan.get(str(int(run.name.partition("-")[2])), {})
if "exit" in told:
    print("error: what is wrong")
    if told.get("begins"):
        (run / "config.yaml").touch()
    sys.exit(told["exit"])
(run / "config.yaml").write_text("optim: {lr: 1}")
signals = []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
metrics = run / "metrics.jsonl"
lines = metrics.read_text().splitlines() if metrics.exists() else []
while len(lines) < 5:
    if not lines and "sends" in told:
        os.kill(os.getppid(), told["sends"])
    error = told.get("error", 1.0) / (len(lines) + 1)
    lines.append(json.dumps({"iteration": len(lines) + 1, "val_error": error}))
    (run / "draft").write_text("\\n".join(lines))
    (run / "draft").replace(metrics)
    # Whoever is to be stopped gives the sweep time for it.
    for _ in range(500 if "sends" in told and start == 1 else told.get("waits", 1)):
        time.sleep(0.02)
        if signals:
            (run / "stopped").touch()
            if "last" in told:
                # It comes to an evaluation before it looks for signals.
                lines.append(json.dumps({"iteration": len(lines) + 1, "val_error": told["last"]}))
                metrics.write_text("\\n".join(lines))
            sys.exit(85)
best = min(json.loads(line)["val_error"] for line in lines)
summary = {"best": {"val_error": best}, "world_size": told.get("world_size", 1)}
(run / "summary.json").write_text(json.dumps(summary))
if "ends_with" in told:
    os.kill(os.getppid(), told["ends_with"])
if "meanwhile" in told:
    for folder in (run, run.with_name(told["meanwhile"])):
        shutil.copy(sys.argv[sys.argv.index("--config") + 1], folder / "config.yaml")
        shutil.copy(run / "summary.json", folder / "ended")
        (folder / "ended").replace(folder / "summary.json")
"""
# What the file says that stands for config.yaml.
AS_PLANNED = ("--optim.lr", "1")
Plan = dict[int, dict[str, Any]]
Sweep = Callable[..., Answer]


@pytest.fixture
def plan_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], None]:
    """Let trainings do what a plan says of the trial, or seed, of each number."""

    def plan_for(plan: Plan) -> None:
        program = tmp_path / "training.py"
        program.write_text(TRAINING.replace("PLAN", repr(json.dumps(plan))))
        monkeypatch.setattr(distributed.launcher, "trial", lambda: [sys.executable, str(program)])

    return plan_for


@pytest.fixture
def sweep(tmp_path: Path, plan_for: Callable[[Plan], None]) -> Sweep:
    """Sweep over the learning rate in tmp_path."""

    def sweep(*arguments: str, plan: Plan | None = None) -> Answer:
        plan_for(plan or {})
        return call("sweep", "--train.run_dir", str(tmp_path / "sweep"), "optim.lr=1e-4..1e-1,log", *arguments)

    return sweep


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def states(folder: Path) -> dict[int, str]:
    return {int(row["trial"]): row["state"] for row in rows_in(folder / "trials.csv")}


@needs_optuna
@pytest.mark.parametrize("storage", ["sqlite", "journal"])
def test_a_sweep_has_as_many_trials_as_were_asked_for_and_no_training_twice(
    sweep: Sweep, storage: str, tmp_path: Path
) -> None:
    plan = {0: {"error": 3.0}, 1: {"error": 2.0}, 2: {"error": 4.0}}
    answer = sweep("--trials", "2", "--storage", storage, plan=plan)
    assert answer.code == 0, answer.errors
    # One more, whatever the storage is called now.
    answer = sweep("--trials", "3", plan=plan)
    assert answer.code == 0, answer.errors
    folder = tmp_path / "sweep"
    rows = rows_in(folder / "trials.csv")
    # The lower, the better.
    assert [(row["trial"], float(row["val_error"])) for row in rows] == [("1", 0.4), ("0", 0.6), ("2", 0.8)]
    assert {row["evaluations"] for row in rows} == {"5"}
    for row in rows:
        starts = (folder / f"trial-{int(row['trial']):04}" / "starts").read_text().splitlines()
        assert [float(lr) for lr in starts] == [float(row["optim.lr"])]
        assert 1e-4 <= float(row["optim.lr"]) <= 1e-1
    assert len({row["optim.lr"] for row in rows}) == 3
    assert f"evaluate --checkpoint {folder / 'trial-0001'}" in answer.output
    assert (folder / "study.log").exists() == (storage == "journal")


@needs_optuna
def test_a_hopeless_trial_is_pruned_unless_none_is(sweep: Sweep, tmp_path: Path) -> None:
    plan = {5: {"error": 9.0, "waits": 500, "last": 0.01}}
    answer = sweep("--trials", "6", plan=plan)
    assert answer.code == 0, answer.errors
    assert states(tmp_path / "sweep") == {**dict.fromkeys(range(5), "complete"), 5: "pruned"}
    assert "trial 5: pruned at evaluation 2" in answer.output
    assert (tmp_path / "sweep/trial-0005/stopped").exists()
    answer = sweep("--trials", "7", "--pruner", "none", plan={6: {"error": 9.0, "waits": 25}})
    assert answer.code == 0, answer.errors
    assert states(tmp_path / "sweep")[6] == "complete"


@needs_optuna
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_sweep_that_is_stopped_takes_its_trial_up_again(sweep: Sweep, number: str, tmp_path: Path) -> None:
    plan = {1: {"sends": int(getattr(signal, number))}}
    stopped = sweep("--trials", "3", plan=plan)
    assert stopped.code == 85, stopped.errors
    assert "stopped: the same command resumes" in stopped.output
    assert states(tmp_path / "sweep") == {0: "complete", 1: "running"}
    resumed = sweep("--trials", "3", plan=plan)
    assert resumed.code == 0, resumed.errors
    assert states(tmp_path / "sweep") == dict.fromkeys(range(3), "complete")
    starts = (tmp_path / "sweep/trial-0001/starts").read_text().splitlines()
    # With its values of before.
    assert len(starts) == 2 and len({*starts}) == 1
    assert (rows_in(tmp_path / "sweep/trials.csv")[1]["evaluations"]) == "5"


@needs_optuna
def test_a_signal_that_comes_before_the_first_training_stops_as_well(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_signals, "received", {signal.SIGUSR1})
    for answer in (sweep(), call("seeds", "0-1", "--train.run_dir", str(tmp_path / "seeds"))):
        assert answer.code == 85, answer.errors
        assert "stopped: the same command resumes" in answer.output
    assert not [*tmp_path.rglob("starts")]


@needs_optuna
def test_a_signal_at_the_end_of_a_sweep_leaves_nothing_to_resume(sweep: Sweep) -> None:
    answer = sweep("--trials", "1", plan={0: {"ends_with": int(signal.SIGTERM)}})
    assert (answer.code, "resumes" in answer.output) == (0, False), answer.output


@needs_optuna
def test_a_sweep_that_was_interrupted_tries_what_one_tries_that_was_not(sweep: Sweep, tmp_path: Path) -> None:
    tried = []
    for plan in ({}, {1: {"sends": int(signal.SIGTERM)}}):
        while sweep("--trials", "3", plan=plan).code == 85:
            pass
        tried.append({row["trial"]: row["optim.lr"] for row in rows_in(tmp_path / "sweep/trials.csv")})
        (tmp_path / "sweep").rename(tmp_path / f"sweep-{len(tried)}")
    assert tried[0] == tried[1]


@needs_optuna
def test_a_trial_that_another_process_trains_is_left_to_it(sweep: Sweep, tmp_path: Path) -> None:
    plan = {0: {"sends": int(signal.SIGTERM)}}
    assert sweep("--trials", "2", plan=plan).code == 85
    claim = trials.claim(tmp_path / "sweep/trial-0000")
    assert claim
    with claim:
        # There is no other trial for this one.
        answer = sweep("--trials", "1", plan=plan)
        assert (answer.code, answer.output.splitlines()[-1]) == (0, "others are training trial 0")
        assert sweep("--trials", "2", plan=plan).code == 0
        assert states(tmp_path / "sweep") == {0: "running", 1: "complete"}
    assert sweep("--trials", "2", plan=plan).code == 0
    assert states(tmp_path / "sweep") == {0: "complete", 1: "complete"}


@needs_optuna
def test_a_trial_that_fails_is_told_of_and_costs_no_other(sweep: Sweep, tmp_path: Path) -> None:
    answer = sweep("--trials", "3", plan={1: {"exit": 1, "begins": True}})
    assert answer.code == 0, answer.errors
    assert states(tmp_path / "sweep") == {0: "complete", 1: "fail", 2: "complete"}
    assert "trial 1: failed: what is wrong; see " in answer.output
    # Diverging is a result, however often.
    answer = sweep("--trials", "7", plan={trial: {"exit": 1, "begins": True} for trial in range(3, 7)})
    assert (answer.code, list(states(tmp_path / "sweep").values()).count("fail")) == (0, 5)


@needs_optuna
@pytest.mark.parametrize(
    ("code", "tried", "sentence"),
    [(2, 1, "error: what is wrong\n"), (1, 3, "error: 3 trainings in a row did not begin: what is wrong\n")],
)
def test_what_no_trial_can_correct_ends_the_sweep(
    sweep: Sweep, code: int, tried: int, sentence: str, tmp_path: Path
) -> None:
    answer = sweep(plan={trial: {"exit": code} for trial in range(20)})
    assert (answer.code, answer.errors) == (code, sentence)
    assert len(list((tmp_path / "sweep").glob("trial-*"))) == tried


@needs_optuna
def test_a_sweep_does_not_mix_trials_of_other_settings(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("--trials", "1").code == 0
    for changed, sentence in (
        (["--train.epochs", "3"], "train.epochs 15 -> 3"),
        (["optim.name=adamw,sgd"], "optim.name None -> ['adamw', 'sgd']"),
    ):
        answer = sweep(*changed)
        assert (answer.code, answer.errors.count("\n"), sentence in answer.errors) == (2, 1, True), answer.errors
    # What changes nothing that is learned may change.
    assert sweep("--trials", "2", "--data.num_workers", "1").code == 0


REFUSED = [
    ([], "say which settings to try, such as optim.lr=1e-4..1e-1,log, or name a file of them"),
    (["sweep.yaml"], "sweep.yaml is neither a setting and its values, such as optim.lr=1e-4..1e-1,log, nor a file"),
    (["optim.lrr=1..2"], "there is no setting optim.lrr: did you mean optim.lr?"),
    (["optim.lr=0..0.1"], "optim.lr must be positive, not 0.0"),
    (["optim.lr=0..0.1,log"], "optim.lr 0..0.1,log must go up, from more than 0"),
    (["optim.lr=1e-2..1e-3"], "optim.lr 1e-2..1e-3 must go up"),
    (["optim.lr=small..large"], "optim.lr has no numbers in small..large"),
    (["task.width=1.5..2"], "task.width has no whole numbers in 1.5..2"),
    (["optim.name=adamw,adam"], "optim.name must be one of adamw, sgd, not adam"),
    (["optim.name=adamw..sgd"], "optim.name must be one of adamw, sgd, not adamw..sgd"),
    (["data.batch_size=64,63", "--here"], "data.batch_size 63 is not divisible by 2 processes: choose 62 or 64"),
    (
        ["data.batch_size=32..64", "--here"],
        "data.batch_size may not be 33, which is in 32..64 (data.batch_size 33 is not divisible by 2 processes: choose 32 or 34)",
    ),
    (["train.run_dir=a,b"], "train.run_dir is the sweep's own for each trial"),
    (["optim.lr=1e-4..1e-1", "--train.resume", "last_1.pt"], "leave out train.resume: each training of sweep resumes"),
    (["optim.lr=1e-4..1e-1", "--trials", "0"], "--trials must be at least 1, not 0"),
]


@needs_optuna
@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_what_no_training_could_use_is_refused_before_the_first(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    # No launcher has a say in this.
    monkeypatch.setattr(distributed.launcher, "trial", lambda: ["false"])
    answer = call("sweep", *arguments, "--train.run_dir", str(tmp_path / "sweep"))
    assert (answer.code, answer.errors.count("\n")) == (2, 1), answer.errors
    assert sentence in answer.errors
    assert not (tmp_path / "sweep").exists()


def test_a_file_says_what_to_try_as_a_command_line_does(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("optim:\n  lr: 1e-4..1e-1,log\n  clip_norm: [null, 1.0]\ntask.width: 16 .. 64\ntrain.seed: 3\n")
    words = ["optim.lr=1e-4..1e-1,log", "optim.clip_norm=null,1.0", "task.width=16..64", "train.seed=3"]
    found = ranges.read_ranges([str(file)])
    assert found == ranges.read_ranges(words)
    assert found["optim.lr"] == ranges.Range(1e-4, 1e-1, log=True, whole=False)
    assert found["task.width"] == ranges.Range(16, 64, log=False, whole=True)
    assert (found["optim.clip_norm"], found["train.seed"]) == (("null", "1.0"), ("3",))
    # An option wins over a file, if it comes later.
    assert ranges.read_ranges([str(file), "task.width=8,9"])["task.width"] == ("8", "9")
    file.write_text("optim:\n  lrr: 1..2\n")
    with pytest.raises(errors.UsageError, match="did you mean optim"):
        ranges.read_ranges([str(file)])


def test_without_optuna_a_sweep_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = call("sweep", "optim.lr=1e-4..1e-1,log")
    assert (answer.code, answer.errors) == (1, "error: a sweep requires optuna: pip install -e '.[sweep]'\n")


def test_seeds_are_trained_once_each_and_their_table_is_that_of_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "1")
    folder = tmp_path / "seeds"
    asked = ("--here", "--train.run_dir", str(folder), *SHORT)
    for numbers in ("0", "0-1"):
        answer = call("seeds", numbers, *asked)
        assert answer.code == 0, answer.errors
    assert [line for line in answer.output.splitlines() if line.startswith("seed ")] == ["seed 1"]
    runs = [json.loads((folder / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    rows = {row["metric"]: row for row in rows_in(folder / "seeds.csv")}
    assert list(rows) == ["train_loss", "val_loss", "val_error", "best val_error"]
    values = [run["val_loss"] for run in runs]
    assert values[0] != values[1]
    row = {name: float(value) for name, value in rows["val_loss"].items() if name != "metric"}
    spread = {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    assert row == pytest.approx({"runs": 2, **spread, "min": min(values), "max": max(values)})
    assert float(rows["best val_error"]["min"]) == min(run["best"]["val_error"] for run in runs)
    # A table of what is there, such as an array of jobs has left.
    answer = call("seeds", "--train.run_dir", str(folder))
    assert (answer.code, "seed 0" in answer.output) == (0, False)


def test_seeds_that_others_train_are_left_to_them(tmp_path: Path, plan_for: Callable[[Plan], None]) -> None:
    plan_for({})
    claim = trials.claim(tmp_path / "seed-0")
    assert claim
    with claim:
        answer = call("seeds", "0-1", "--train.run_dir", str(tmp_path))
    said = answer.output.splitlines()[-1]
    assert (answer.code, said) == (0, "others are training 0: the last of them makes the table")
    assert not (tmp_path / "seeds.csv").exists()


def test_whoever_ends_last_makes_the_table_of_shared_seeds(tmp_path: Path, plan_for: Callable[[Plan], None]) -> None:
    # While this process trains with seed 1, another one ends seed 0, which it had begun before.
    plan_for({1: {"meanwhile": "seed-0"}})
    claim = trials.claim(tmp_path / "seed-0")
    assert claim
    with claim:
        answer = call("seeds", "0-1", "--train.run_dir", str(tmp_path))
    assert answer.code == 0, answer.errors
    assert rows_in(tmp_path / "seeds.csv")[0]["runs"] == "2"


def test_a_table_of_other_numbers_of_processes_says_so(tmp_path: Path, plan_for: Callable[[Plan], None]) -> None:
    said = "trained by 1 and 4 processes: where log.txt says that results change"
    for plan, number in (({}, "0"), ({1: {"world_size": 4}}, "1")):
        plan_for(plan)
        answer = call("seeds", number, "--train.run_dir", str(tmp_path), *AS_PLANNED)
        assert (answer.code, said in answer.output) == (0, number == "1")


@pytest.mark.parametrize(
    ("files", "code", "sentence"),
    [
        ({}, 1, "holds no finished run of a seed"),
        ({"seed-0": "[", "seed-1": "lr: 2"}, 1, "config.yaml is damaged: restore it, or choose another"),
        ({"seed-0": "lr: 1", "seed-1": "lr: 2"}, 2, "differ in optim.lr, not in their seeds alone"),
    ],
)
def test_a_table_of_no_seeds_is_refused(files: dict[str, str], code: int, sentence: str, tmp_path: Path) -> None:
    for name, setting in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"optim:\n  {setting}\n")
        (tmp_path / name / "summary.json").write_text("{}")
    answer = call("seeds", "--train.run_dir", str(tmp_path))
    assert (answer.code, sentence in answer.errors, answer.errors.count("\n")) == (code, True, 1), answer.errors


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("a-b", "a-b must be seeds, such as 0,1,2 or 0-4"),
        ("1,3-2", "3-2 holds no seed: write the smaller one first"),
        ("0-999999999", "0-999999999 are more than 10000 seeds: name fewer"),
    ],
)
def test_what_is_no_seed_is_refused(tmp_path: Path, asked: str, sentence: str) -> None:
    answer = call("seeds", asked, "--here", "--train.run_dir", str(tmp_path / "seeds"))
    assert (answer.code, answer.errors) == (2, f"error: {sentence}\n")


def test_seeds_of_other_settings_are_refused_before_they_train(
    tmp_path: Path, plan_for: Callable[[Plan], None]
) -> None:
    plan_for({})
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0/config.yaml").write_text("train: {epochs: 7, seed: 0}\ndata: {num_workers: 3}\n")
    asked = ("--train.run_dir", str(tmp_path), *AS_PLANNED, "--train.epochs")
    answer = call("seeds", "1-2", *asked, "6")
    assert (answer.code, answer.errors.count("\n")) == (2, 1)
    assert "seed-0, which would be in the same table, was trained with another train.epochs: " in answer.errors
    assert not (tmp_path / "seed-1").exists()
    # Those that are asked for train on with the new settings, or say themselves why they cannot.
    for numbers, epochs in (("0-1", "8"), ("1-2", "7")):
        assert "same table" not in call("seeds", numbers, *asked, epochs).errors


def test_a_number_of_processes_that_is_left_to_the_launcher_is_no_other_setting() -> None:
    def differ(old: int | None, new: int | None) -> list[str]:
        first, second = ({"distributed": dict[str, object](nproc_per_node=number)} for number in (old, new))
        return seeds.names_that_differ(first, second, "local-sgd")

    assert differ(2, None) == differ(None, 2) == []
    assert differ(2, 4) == ["distributed.nproc_per_node"]


def test_a_seed_that_fails_or_is_stopped_costs_no_other(tmp_path: Path, plan_for: Callable[[Plan], None]) -> None:
    plan_for({0: {"exit": 1}, 2: {"sends": int(signal.SIGTERM)}})
    asked = ("seeds", "0-3", "--train.run_dir", str(tmp_path))
    stopped = call(*asked)
    assert (stopped.code, stopped.output.splitlines()[-1]) == (85, "stopped: the same command resumes")
    assert "seed 0 failed: what is wrong; see " in stopped.output
    answer = call(*asked)
    assert answer.code == 1, answer.errors
    starts = {seed: len((tmp_path / f"seed-{seed}" / "starts").read_text().splitlines()) for seed in range(4)}
    # The settings in the file that stands for config.yaml are others: it is the training that would say so.
    assert starts == {0: 2, 1: 2, 2: 2, 3: 1}
    assert rows_in(tmp_path / "seeds.csv")[0]["runs"] == "3"
