"""What a training learns, on any number of processes, in one go or in several."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from conftest import PACKAGE, PROJECT, Run, Train, call, launch, train_in

from {{ cookiecutter.package_name }} import distributed

# A short training whose steps are exact enough to compare.
SHORT = ("--optim.name", "sgd", "--optim.lr", "0.05", "--train.max_iterations", "30")


def assert_equal_weights(one: Run, other: Run, tolerance: float) -> None:
    for name, weight in one.weights().items():
        torch.testing.assert_close(other.weights()[name], weight, rtol=0, atol=tolerance)


def test_two_processes_learn_the_digits(trained: Run) -> None:
    assert trained.summary["world_size"] == 2
    assert trained.summary["val_accuracy"] >= 0.97
    assert trained.summary["weights_difference"] == 0.0
    losses = [record["train_loss"] for record in trained.records]
    assert losses[-1] < 0.1 < losses[0]


def test_the_run_directory_is_complete(trained: Run) -> None:
    files = {file.name for file in trained.path.iterdir()}
    assert files >= {"config.yaml", "metrics.jsonl", "summary.json", "curves.png", "log.txt", "checkpoints"}
    assert not [name for name in files if name.endswith(".part")]
    assert set(trained.records[0]) == {
        "epoch",
        "iteration",
        "train_loss",
        "val_loss",
        "val_accuracy",
        "lr",
        "samples_per_second",
    }
    assert {"backend", "launcher", "hardware", "device", "nnodes", "wall_time_s", "versions"} <= set(trained.summary)
    assert yaml.safe_load((trained.path / "config.yaml").read_text())["data"]["batch_size"] == 64
    assert (trained.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((trained.path / "checkpoints").glob("last_*.pt"))) == 2


def test_evaluate_repeats_the_numbers_of_the_training(trained: Run) -> None:
    result = call("evaluate", "--checkpoint", str(trained.checkpoint()), *distributed.TRIAL)
    assert result.returncode == 0, result.stderr
    metrics = json.loads(result.stdout)
    assert metrics["val_loss"] == trained.records[-1]["val_loss"]
    assert metrics["val_accuracy"] == trained.records[-1]["val_accuracy"]


@pytest.mark.parametrize("processes", [2, 4])
def test_many_processes_learn_what_one_learns(train: Train, processes: int) -> None:
    one, many = train(1, *SHORT), train(processes, *SHORT)
    assert one.records[-1]["iteration"] == many.records[-1]["iteration"] == 30
    for ours, theirs in zip(one.records, many.records, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-5)
    assert_equal_weights(one, many, tolerance=1e-5)


@pytest.mark.parametrize("processes", [2, 3])
def test_metrics_do_not_depend_on_the_number_of_processes(trained: Run, processes: int) -> None:
    arguments = ("evaluate", "--checkpoint", str(trained.checkpoint("best")))
    one, many = call(*arguments, *distributed.TRIAL), launch(processes, *arguments)
    assert json.loads(many.stdout) == json.loads(one.stdout)


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
def test_the_learning_rate_is_scaled_by_the_world_size(train: Train, scaling: str) -> None:
    settings = ("--optim.lr", "0.1", "--optim.lr_scaling", scaling, "--train.max_iterations", "2")
    expected = {"none": "lr 0.1 x 1 = 0.1 (none)", "linear": "lr 0.1 x 2 = 0.2 (linear)"}
    assert expected.get(scaling, "lr 0.1 x 1.41421 = 0.141421 (sqrt)") in train(2, *settings).log


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    settings = ("--train.epochs", "10", "--distributed.nproc_per_node", "1")
    whole = train_in(tmp_path / "whole", 1, *settings)
    folder = tmp_path / "parts"
    command = [sys.executable, "-m", PACKAGE, "train", *distributed.TRIAL, *settings, "--train.run_dir", str(folder)]
    process = subprocess.Popen([*command, "--train.log_every", "1"], cwd=PROJECT)
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == distributed.STOPPED
    finally:
        process.kill()
    parts = train_in(folder, 1, *settings)
    resumed_at = int(Path(parts.summary["resumed_from"]).stem.split("_")[1])
    assert 0 < resumed_at < whole.records[-1]["iteration"]
    assert [record["val_loss"] for record in parts.records] == [record["val_loss"] for record in whole.records]
    assert_equal_weights(whole, parts, tolerance=0)


def test_a_finished_run_is_not_trained_again(trained: Run) -> None:
    before = trained.checkpoint().stat().st_mtime_ns
    again = train_in(trained.path, 2)
    assert "is complete" in again.log
    assert trained.checkpoint().stat().st_mtime_ns == before


def test_more_epochs_continue_a_finished_run(train: Train, tmp_path: Path) -> None:
    first = train(1, "--train.epochs", "1")
    more = train_in(first.path, 1, "--train.epochs", "2")
    assert [record["epoch"] for record in more.records] == [1, 2]
    assert "settings changed since this run began: train.epochs 1 -> 2" in more.log


def test_a_run_directory_in_use_is_not_overwritten(trained: Run) -> None:
    result = call("train", *distributed.TRIAL, "--train.run_dir", str(trained.path), "--train.resume", "none")
    assert result.returncode == 1
    assert "holds a run already" in result.stderr


def test_mixed_precision_learns(train: Train) -> None:
    run = train(2, "--train.amp", "bf16", "--train.epochs", "5")
    assert run.summary["val_accuracy"] >= 0.9
