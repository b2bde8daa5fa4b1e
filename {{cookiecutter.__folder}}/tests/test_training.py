"""A run learns the same on any number of processes, and in one go or in several."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from conftest import SHORT, TIMED, Answer, Run, assert_equal, assert_same_steps, start, train


def learned(run: Run) -> list[dict[str, Any]]:
    """Return the evaluations without their speed."""
    return [{name: value for name, value in one.items() if name != "samples_per_second"} for one in run.records]


def test_two_processes_learn_what_one_learns(alone: Run, pair: Run) -> None:
    assert pair.summary["world_size"] == 2
    assert pair.summary["weights_difference"] == 0
    assert len(alone.records) == len(pair.records) > 0
    for mine, theirs in zip(learned(alone), learned(pair), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("clip_norm", "parts"), [("null", 1), ("0.1", 2)], ids=["plain", "clipped-accumulated"])
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, clip_norm: str, parts: int) -> None:
    program = ("tests/in_float64.py",)
    settings = [*SHORT, "--train.max_iterations=8", f"--optim.clip_norm={clip_norm}"]
    one = train(tmp_path / "one", 1, *settings, program=program)
    two = train(tmp_path / "two", 2, *settings, f"--optim.accumulation_steps={parts}", program=program)
    assert all(any(name.startswith("grad_norm") for name in step) == (clip_norm != "null") for step in two.steps)
    assert_same_steps(one, two)


def test_the_loss_falls(alone: Run) -> None:
    losses = [record["train_loss"] for record in alone.records]
    assert losses[-1] < losses[0]


def test_mixed_precision_learns(alone: Run, tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, *SHORT, "--train.amp=bf16")
    losses = [record["train_loss"] for record in run.records]
    assert losses[-1] < losses[0]
    assert losses != [record["train_loss"] for record in alone.records]
    assert {weight.dtype for weight in run.weights().values()} == {weight.dtype for weight in alone.weights().values()}


@pytest.fixture(scope="session", params=[(1, "TERM", 1), (2, "HUP", 0)], ids=["alone", "pair"])
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Answer]]:
    """The run of ``alone`` or ``pair``, stopped by a signal, killed, and resumed; what the three commands printed."""
    processes, stop, num_workers = request.param
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    arguments = ["train", "--train.run_dir", str(folder), *SHORT, "--optim.ema_decay=0.9"]
    arguments += ["--data.num_workers", str(num_workers)]
    interrupted = [
        start(processes, *arguments, program=("tests/interrupted.py",), SIGNAL=signal)
        for signal in (f"{stop}@5", "KILL@13")
    ]
    return Run(folder, ""), [*interrupted, start(processes, *arguments)]


def test_a_stop_signal_saves_a_checkpoint(interrupted: tuple[Run, list[Answer]]) -> None:
    answer = interrupted[1][0]
    assert answer.code == 85, answer.errors
    assert "stopped by a signal after step 6, checkpoint saved" in answer.errors
    assert "resumes" in answer.errors


def test_a_killed_run_resumes(interrupted: tuple[Run, list[Answer]]) -> None:
    killed, last = interrupted[1][1:]
    assert "last_6.pt at step 6" in killed.errors
    assert killed.code not in (0, 85)
    assert last.code == 0, last.errors
    assert "resumed from" in last.errors


def test_an_interrupted_run_ends_bit_for_bit_like_an_undisturbed_one(
    interrupted: tuple[Run, list[Answer]], request: pytest.FixtureRequest
) -> None:
    run = interrupted[0]
    undisturbed: Run = request.getfixturevalue("alone" if run.summary["world_size"] == 1 else "pair")
    # Model, step with optimizer and schedule, moving average, and the meter of losses.
    assert {"model", "step", "average", "meter"} <= run.saved().keys()
    assert_equal(run.saved(), undisturbed.saved())
    assert_equal(run.saved("best"), undisturbed.saved("best"))
    assert learned(run) == learned(undisturbed)
    steps = [[{name: one[name] for name in one.keys() - TIMED} for one in some.steps] for some in (run, undisturbed)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("processes", [1, 2])
def test_evaluate_prints_the_recorded_metrics(alone: Run, processes: int) -> None:
    answer = start(processes, "evaluate", "--checkpoint", str(alone.path))
    assert answer.code == 0, answer.errors
    best = alone.summary["best"]
    printed = json.loads(answer.output)
    assert printed.pop("checkpoint").endswith(best["checkpoint"])
    assert printed == pytest.approx({name: best[name] for name in printed}, rel=1e-5)
    assert len(printed) >= 2


def test_the_run_directory_is_complete(alone: Run) -> None:
    files = {file.name for file in alone.path.iterdir()}
    assert {
        "config.yaml",
        "metrics.jsonl",
        "steps.jsonl",
        "summary.json",
        "checkpoints",
        "log.txt",
        "curves.png",
    } <= files
    assert not [name for name in files if name.endswith(".part")]
    assert [one["iteration"] for one in alone.records] == [8, 16, 24]
    assert [one["iteration"] for one in alone.steps] == [*range(2, 25, 2)]
    places = {"backend", "launcher", "hardware", "device", "world_size", "nnodes"}
    assert places | {"wall_time_s", "resumed_from", "versions", "source", "best", "iteration"} <= alone.summary.keys()
    assert {"commit", "folder"} <= alone.summary["source"].keys()
    assert sorted(file.name for file in (alone.path / "checkpoints").glob("last_*")) == ["last_20.pt", "last_24.pt"]
    assert (alone.path / alone.summary["best"]["checkpoint"]).exists()
    assert "done in" in (alone.path / "log.txt").read_text()


def test_patience_ends_a_run_early(tmp_path: Path) -> None:
    # With such a learning rate, no evaluation is better than the first.
    settings = ["--optim.lr=1e-30", "--optim.weight_decay=0", "--train.patience=2", "--train.evaluate_every=2 steps"]
    run = train(tmp_path / "run", 1, *SHORT, *settings)
    assert [one["iteration"] for one in run.records] == [2, 4, 6]


def test_nan_ends_a_run_in_one_line_and_is_not_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    answer = start(1, "train", "--train.run_dir", str(folder), *SHORT, "--optim.lr=1e30")
    assert answer.code == 1
    assert [line for line in answer.errors.splitlines() if "rror" in line] == answer.errors.splitlines()[-1:]
    assert "after step" in answer.errors and "optim.lr" in answer.errors
    assert not [*(folder / "checkpoints").iterdir()]


@pytest.fixture(scope="session")
def repaired(alone: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of ``alone``, whose last checkpoint was damaged and the one before saved by other source, resumed."""
    folder = tmp_path_factory.mktemp("repaired") / "run"
    shutil.copytree(alone.path, folder)
    last = folder / "checkpoints" / "last_24.pt"
    with ZipFile(last) as archive:
        largest = max((archive.read(name) for name in archive.namelist() if "/data/" in name), key=len)
    content = bytearray(last.read_bytes())
    # One byte of a tensor, which torch.load would not notice.
    content[content.index(largest)] ^= 255
    last.write_bytes(content)
    before = folder / "checkpoints" / "last_20.pt"
    saved = torch.load(before, weights_only=True)
    saved["run"]["source"] = "other"
    torch.save(saved, before)
    return train(folder, 1, *SHORT, "--optim.ema_decay=0.9")


def test_a_damaged_checkpoint_is_put_aside(alone: Run, repaired: Run) -> None:
    assert (repaired.path / "checkpoints" / "last_24.pt.damaged").exists()
    assert "last_24.pt is damaged" in repaired.log
    assert "last_20.pt at step 20" in repaired.log
    assert_equal(repaired.weights(), alone.weights())


def test_changed_source_is_logged(repaired: Run) -> None:
    assert "the source of this project changed" in repaired.log


def test_a_run_directory_that_is_in_use_is_refused(alone: Run) -> None:
    with (alone.path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = start(1, "train", "--train.run_dir", str(alone.path), *SHORT)
    assert answer.code == 1
    assert "is in use by" in answer.errors.splitlines()[-1]
