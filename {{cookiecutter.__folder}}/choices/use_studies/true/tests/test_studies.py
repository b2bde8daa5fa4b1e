"""Studies: what a sweep tries, stops and resumes; the table of seeds; speed and memory over processes."""

import csv
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, call, settings_here, what_is_lacking

from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.packs.studies import ranges, scaling, trials
from {{ cookiecutter.package_name }}.task import objective

SCORE = f"val_{objective.SCORE}"
LR = "optim.lr=1e-4..1e-1,log"
SIGN = 1 if objective.HIGHER_IS_BETTER else -1
# A run of five evaluations that follows a plan for the trial, or the seed, of its number.
STUB = """\
import json, os, pathlib, signal, sys, time
given = dict(word[2:].split("=", 1) for word in sys.argv if "=" in word)
run = pathlib.Path(given["train.run_dir"])
plan = json.loads(os.environ["PLAN"]).get(str(int(run.name.partition("-")[2])), {})
is_sender = "sends" in plan and not (run / "starts").exists()
with (run / "starts").open("a") as starts:
    print(given.get("optim.lr"), file=starts)
if plan.get("begins", "exit" not in plan):
    (run / "config.yaml").write_text("{}")
if "exit" in plan:
    sys.exit(print("error: what is wrong") or plan["exit"])
stopped = []
signal.signal(signal.SIGUSR1, lambda *_: stopped.append(1))
for evaluation in range(1, 6):
    best = {os.environ["SCORE"]: plan.get("score", 1.0)}
    with (run / "metrics.jsonl").open("a") as metrics:
        print(json.dumps({"iteration": evaluation, **best}), file=metrics)
    if is_sender:
        os.kill(os.getppid(), signal.SIGTERM)
    end = time.monotonic() + (20 if is_sender or "slow" in plan else 0)
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
    if stopped:
        (run / "stopped").touch()
        sys.exit(85)
(run / "summary.json").write_text(json.dumps({**best, "best": best}))
"""
Study = Callable[..., Answer]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Study:
    """Run a study in tmp_path whose runs follow a plan."""

    def study(*arguments: str, plan: dict[int, Any] | None = None) -> Answer:
        monkeypatch.setenv("PLAN", json.dumps(plan or {}))
        monkeypatch.setenv("SCORE", SCORE)
        monkeypatch.setattr(trials, "command", lambda config: [sys.executable, "-c", STUB])
        code = main([*arguments, "--train.run_dir", str(tmp_path / "study")])
        return Answer(code, *capsys.readouterr())

    return study


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def states(folder: Path) -> dict[int, str]:
    return {int(row["trial"]): row["state"] for row in rows_in(folder / "study/trials.csv")}


def starts(run: Path) -> list[str]:
    return (run / "starts").read_text().splitlines()


def test_a_sweep_has_the_requested_trials_and_repeats_none(study: Study, tmp_path: Path) -> None:
    plan = {0: {"score": 2.0 * SIGN}, 1: {"score": 3.0 * SIGN}, 2: {"score": 1.0 * SIGN}}
    assert study("sweep", LR, "--trials", "2", plan=plan).code == 0
    answer = study("sweep", LR, "--trials", "3", plan=plan)
    rows = rows_in(tmp_path / "study/trials.csv")
    assert [(row["trial"], float(row[SCORE]) * SIGN) for row in rows] == [("1", 3.0), ("0", 2.0), ("2", 1.0)]
    assert {row["evaluations"] for row in rows} == {"5"}
    for row in rows:
        assert starts(tmp_path / f"study/trial-{int(row['trial']):04}") == [row["optim.lr"]]
        assert 1e-4 <= float(row["optim.lr"]) <= 1e-1
    assert f"evaluate --checkpoint {tmp_path / 'study/trial-0001'}" in answer.output


def test_a_hopeless_trial_is_pruned(study: Study, tmp_path: Path) -> None:
    assert study("sweep", LR, "--trials", "6", plan={5: {"score": 1.0 - 9.0 * SIGN, "slow": True}}).code == 0
    assert states(tmp_path) == {**dict.fromkeys(range(5), "complete"), 5: "pruned"}


def test_a_stopped_sweep_resumes_its_trial(study: Study, tmp_path: Path) -> None:
    plan = {1: {"sends": True}}
    stopped = study("sweep", LR, "--trials", "3", plan=plan)
    assert (stopped.code, "the same command resumes" in stopped.output) == (85, True), stopped.errors
    assert states(tmp_path) == {0: "complete", 1: "running"}
    assert study("sweep", LR, "--trials", "3", plan=plan).code == 0
    assert states(tmp_path) == dict.fromkeys(range(3), "complete")
    tried = [starts(tmp_path / f"study/trial-000{number}") for number in range(3)]
    assert ([len(values) for values in tried], len({*tried[1]})) == ([1, 2, 1], 1)


def test_a_trial_of_another_process_is_left_to_it_until_that_is_gone(study: Study, tmp_path: Path) -> None:
    assert study("sweep", LR, "--trials", "2", plan={0: {"sends": True}}).code == 85
    with trials.claim(tmp_path / "study/trial-0000") or pytest.fail("it is taken"):
        assert study("sweep", LR, "--trials", "2").code == 0
        assert states(tmp_path) == {0: "running", 1: "complete"}
    assert study("sweep", LR, "--trials", "2").code == 0
    assert states(tmp_path) == {0: "complete", 1: "complete"}


def test_a_failing_trial_costs_no_other_and_three_at_the_start_end_the_sweep(study: Study, tmp_path: Path) -> None:
    answer = study("sweep", LR, "--trials", "3", plan={1: {"exit": 1, "begins": True}})
    assert answer.code == 0, answer.errors
    assert "trial 1: failed (what is wrong); see " in answer.output
    assert states(tmp_path) == {0: "complete", 1: "fail", 2: "complete"}
    answer = study("sweep", LR, "--trials", "9", plan={number: {"exit": 1} for number in range(3, 9)})
    assert answer.errors == "error: 3 trials in a row failed before their first step: what is wrong\n"
    assert (answer.code, len(states(tmp_path))) == (1, 6)


def test_a_sweep_does_not_mix_settings_or_ranges(study: Study) -> None:
    assert study("sweep", LR, "--trials", "1").code == 0
    for changed, text in (("--train.epochs=3", "-> 3"), ("optim.name=adamw,sgd", "other ranges")):
        answer = study("sweep", LR, changed)
        assert (answer.code, text in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors
    assert study("sweep", LR, "--trials", "1", "--data.num_workers", "1").code == 0


REFUSED = [
    ("", "has nothing to try"),
    ("optim.lrr=1..2", "optim.lrr is not a setting"),
    ("optim.lr=0..0.1", "optim.lr must be positive"),
    ("optim.lr=1e-2..1e-3", "optim.lr=1e-2..1e-3"),
    ("data.batch_size=64,63", "data.batch_size 63 is not divisible by 2 processes"),
    ("data.batch_size=32..64", "data.batch_size 33 is not divisible by 2 processes"),
    ("train.run_dir=a,b", "train.run_dir differs in each trial"),
]


def test_values_that_no_run_accepts_are_refused_before_the_first(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "world_sizes", lambda config: [2])
    for word, text in REFUSED:
        answer = study("sweep", *filter(None, [word]))
        assert (answer.code, text in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors
    assert not (tmp_path / "study").exists()


def test_seeds_are_trained_once_each_and_their_spread_is_written(study: Study, tmp_path: Path) -> None:
    plan: dict[int, Any] = {seed: {"score": float(seed)} for seed in range(4)}
    plan[1]["sends"], plan[2] = True, {"exit": 1}
    assert study("seeds", "0-3", plan=plan).code == 85
    answer = study("seeds", "0-3", plan=plan)
    assert (answer.code, "seed 2 failed (what is wrong)" in answer.output) == (1, True), answer.errors
    assert [len(starts(tmp_path / f"study/seed-{seed}")) for seed in range(4)] == [1, 2, 1, 1]
    row = next(row for row in rows_in(tmp_path / "study/seeds.csv") if row["metric"] == SCORE)
    assert (row["runs"], float(row["mean"])) == ("3", statistics.fmean([0, 1, 3]))
    assert float(row["std"]) == pytest.approx(statistics.stdev([0, 1, 3]))
    assert study("seeds", "0-3", "--optim.lr", "0.5").code == study("seeds", "4-x").code == 2


def test_more_processes_pay_off_above_the_last_batch_at_which_they_are_slower() -> None:
    speeds = {(1, 2): 8.0, (1, 4): 8.0, (1, 8): 8.0, (2, 2): 9.0, (2, 4): 7.0, (2, 8): 16.0, (4, 8): 1.0}
    two, four = scaling.crossovers(speeds)
    assert two == "2 processes pay off from batch 8: 2.00 times as fast at 8"
    assert four == "4 processes do not pay off up to batch 8"


@pytest.mark.skipif(bool(what_is_lacking(1)), reason=what_is_lacking(1))
def test_real_runs_are_searched_repeated_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "1")
    short = ("--train.max_iterations=4", "--optim.warmup=1 steps", *settings_here())
    answer = call("sweep", LR, "--trials=1", *short, "--train.run_dir", str(tmp_path / "study"))
    assert answer.code == 0, answer.errors + answer.output
    answer = call("seeds", "0,1", *short, "--train.run_dir", str(tmp_path / "seeds"))
    assert answer.code == 0, answer.errors + answer.output
    assert {row["runs"] for row in rows_in(tmp_path / "seeds/seeds.csv")} == {"2"}
    options = ("--processes=1", "--batches=8", "--steps=5", "--train.run_dir", str(tmp_path / "scaling"))
    answer = call("scaling", *options, *settings_here())
    assert answer.code == 0, answer.errors + answer.output
    (row,) = rows_in(tmp_path / "scaling/scaling.csv")
    assert float(row["milliseconds"]) == pytest.approx(8e3 / float(row["samples_per_second"]))


def test_the_memory_of_a_rank_is_simulated(tmp_path: Path) -> None:
    options = ("scaling", "--simulate", "--train.run_dir", str(tmp_path), *settings_here())
    answer = call(*options, "--world-size=512", "--data.batch_size=4096")
    assert (answer.code, "for a step of 8 samples" in answer.output) == (0, True), answer.errors
    row = rows_in(tmp_path / "simulated.csv")[0]
    sizes = {name: float(size) for name, size in row.items() if name != "strategy"}
    assert sizes["weights"] >= sizes["gradients"] > 0
    assert sum(sizes.values()) == pytest.approx(2 * sizes["total"])
