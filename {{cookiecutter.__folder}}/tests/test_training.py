"""What a training learns, on any number of processes, in one go or in several."""

import contextlib
import logging
import math
import os
import pty
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from conftest import FOLDERS, Run, call, train
from frame import config, curves, distributed, early_signals, objective, training
from torch import nn

ONE = ("--distributed.nproc_per_node", "1")
# A short training whose steps are exact enough to compare.
EXACT = ("--optim.name", "sgd", "--optim.lr", "0.05", "--train.max_iterations", "30")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One training in two processes with every setting at its default."""
    return train(tmp_path_factory.mktemp("trained") / "run", 2)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One short training in a single process."""
    return train(tmp_path_factory.mktemp("alone") / "run", 1, *EXACT)


def test_micro_batches_learn_what_whole_batches_learn(alone: Run, tmp_path: Path) -> None:
    parts = train(tmp_path / "parts", 2, *EXACT, "--optim.accumulation_steps", "4")
    assert_equal_weights(alone, parts, tolerance=1e-5)


def test_clipped_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    # So small a norm that every step is clipped, in other words to gradients of the same length.
    clip = ("--optim.clip_norm", "0.05", "--optim.accumulation_steps", "2")
    one, two = train(tmp_path / "one", 1, *EXACT, *clip), train(tmp_path / "two", 2, *EXACT, *clip)
    assert_equal_weights(one, two, tolerance=1e-5)


def assert_equal_weights(one: Run, other: Run, tolerance: float) -> None:
    for name, weight in one.weights().items():
        torch.testing.assert_close(other.weights()[name], weight, rtol=0, atol=tolerance)


def test_two_processes_learn(trained: Run) -> None:
    assert trained.summary["world_size"] == 2
    assert trained.summary["val_error"] <= 0.15
    assert trained.summary["weights_difference"] == 0.0
    losses = [record["train_loss"] for record in trained.records]
    assert losses[-1] < 0.03 < losses[0]


def test_the_run_directory_is_complete(trained: Run) -> None:
    files = {file.name for file in trained.path.iterdir()}
    assert files >= {"config.yaml", "metrics.jsonl", "summary.json", "curves.png", "log.txt", "checkpoints"}
    assert not [name for name in files if name.endswith(".part")]
    record = {"epoch", "iteration", "train_loss", "val_loss", "val_error", "lr", "samples_per_second"}
    assert set(trained.records[0]) == record
    place = {"backend", "launcher", "hardware", "device", "world_size", "nnodes"}
    assert record | place | {"wall_time_s", "resumed_from", "versions"} <= set(trained.summary)
    assert yaml.safe_load((trained.path / "config.yaml").read_text())["data"]["batch_size"] == 64
    assert (trained.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((trained.path / "checkpoints").glob("last_*.pt"))) == 2


def test_the_checkpoint_with_the_lowest_error_is_kept(trained: Run) -> None:
    best = min(trained.records, key=lambda record: float(record["val_error"]))
    assert [file.name for file in (trained.path / "checkpoints").glob("best_*")] == [f"best_{best['iteration']}.pt"]
    assert best["val_error"] < trained.records[0]["val_error"]


def test_every_metric_has_a_panel_of_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    records = [{"epoch": 1, "train_loss": 2.0, "val_loss": 1.0, "val_error": 3.0, "val_other": 4.0}]
    curves.draw_curves(records, tmp_path / "curves.png", "points")
    assert figures[0].get_suptitle() == "points"
    assert [(panel.get_title(), panel.get_xlabel(), panel.get_ylabel()) for panel in figures[0].axes] == [
        ("loss", "epoch", "mean squared error"),
        ("error", "epoch", "validation error"),
        ("other", "epoch", "validation other"),
    ]


@pytest.mark.parametrize("processes", [2, 4])
def test_many_processes_learn_what_one_learns(alone: Run, tmp_path: Path, processes: int) -> None:
    many = train(tmp_path / "many", processes, *EXACT)
    assert alone.records[-1]["iteration"] == many.records[-1]["iteration"] == 30
    for ours, theirs in zip(alone.records, many.records, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-5)
    assert_equal_weights(alone, many, tolerance=1e-5)


def test_a_stopped_run_ends_where_an_uninterrupted_one_ends(tmp_path: Path) -> None:
    settings = ("--train.epochs", "10")
    whole = train(tmp_path / "whole", 1, *settings)
    folder = tmp_path / "parts"
    arguments = ["train", "--train.run_dir", str(folder), *settings, "--train.log_every", "1"]
    process = subprocess.Popen(distributed.local_command(1, [*arguments, *distributed.TRIAL]), cwd=FOLDERS["small"])
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == config.EXIT_RESUMABLE
    finally:
        process.kill()
    parts = train(folder, 1, *settings)
    resumed_at = int(Path(parts.summary["resumed_from"]).stem.split("_")[1])
    assert 0 < resumed_at < whole.records[-1]["iteration"]
    assert [record["val_loss"] for record in parts.records] == [record["val_loss"] for record in whole.records]
    assert_equal_weights(whole, parts, tolerance=0)


@pytest.mark.parametrize(("steps", "code"), [(16, config.EXIT_RESUMABLE), (8, 0)])
def test_a_signal_after_the_last_step_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, code: int
) -> None:
    monkeypatch.setattr(early_signals, "received", {signal.SIGUSR1})
    folder = tmp_path / "run"
    settings = (*ONE, "--train.log_every", "8", "--train.max_iterations", str(steps))
    answer = call("train", "--train.run_dir", str(folder), *settings)
    assert answer.code == code, answer.errors
    assert (folder / "stopped").exists() == (code == config.EXIT_RESUMABLE)
    assert (folder / "summary.json").exists() == (code == 0)


def test_a_run_resumes_after_it_was_killed_while_it_saved(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--train.epochs", "2")
    summary = run.summary
    # Killed before the summary.
    (run.path / "summary.json").unlink()
    again = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert again.summary["val_loss"] == summary["val_loss"]
    # Killed between the removal of an old checkpoint and the writing of the new one.
    for name in ("last_16.pt", *(file.name for file in (run.path / "checkpoints").glob("best_*.pt"))):
        (run.path / "checkpoints" / name).unlink()
    more = train(tmp_path / "run", 1, "--train.epochs", "4")
    assert more.summary["resumed_from"].endswith("last_32.pt")
    files = {file.name.partition("_")[0] for file in (run.path / "checkpoints").iterdir()}
    assert files == {"best", "last"}
    # Into another folder, which has none of these files.
    other = train(tmp_path / "other", 1, "--train.epochs", "6", "--train.resume", str(more.checkpoint()))
    assert len(list((other.path / "checkpoints").iterdir())) == 3


def test_a_finished_run_is_kept_unless_more_epochs_are_asked_for(tmp_path: Path) -> None:
    first = train(tmp_path / "run", 1, "--train.epochs", "1")
    before = first.checkpoint().stat().st_mtime_ns
    again = train(tmp_path / "run", 1, "--train.epochs", "1")
    assert "is complete" in again.log
    assert again.checkpoint().stat().st_mtime_ns == before
    refused = call("train", "--train.run_dir", str(first.path), "--train.resume", "none", *ONE)
    assert (refused.code, "holds a run already" in refused.errors) == (1, True), refused.errors
    settings = (first.path / "config.yaml").read_text()
    refused = call("train", "--train.run_dir", str(first.path), *ONE, "--data.batch_size", "128", "--train.epochs", "2")
    assert (refused.code, "keep data.batch_size and the task's settings" in refused.errors) == (2, True), refused.errors
    assert (first.path / "config.yaml").read_text() == settings
    more = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert [record["epoch"] for record in more.records] == [1, 2]
    # The schedule is that of the two epochs, and ends with them.
    assert more.records[-1]["lr"] < 1e-4
    lost = call("evaluate", "--checkpoint", str(first.path / "nowhere.pt"), "--distributed.nproc_per_node", "1")
    assert (lost.code, "there is no checkpoint" in lost.errors) == (2, True), lost.errors
    assert "settings changed since this run began: train.epochs 1 -> 2" in more.log


def test_a_bar_shows_on_a_terminal_only(trained: Run, tmp_path: Path) -> None:
    reader, terminal = pty.openpty()
    arguments = ["train", "--train.run_dir", str(tmp_path / "run"), "--train.epochs", "2", *distributed.TRIAL]
    with os.fdopen(reader, "rb", buffering=0) as screen:
        process = subprocess.Popen(distributed.local_command(1, arguments), cwd=FOLDERS["small"], stderr=terminal)
        os.close(terminal)
        shown = b""
        # Linux answers with an error when the other side has closed.
        with contextlib.suppress(OSError):
            while chunk := screen.read(4096):
                shown += chunk
        assert process.wait(timeout=60) == 0
    assert b"epoch 2" in shown
    assert "\u2501".encode() in shown
    assert "\u2501" not in trained.log


def test_mixed_precision_learns(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 1, "--train.amp", "bf16")
    assert run.summary["val_error"] <= 0.15


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_grows_with_the_world_as_asked(
    scaling: Literal["none", "linear", "sqrt"], factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="small")
    # A training in this process may have cut the logger off from the others.
    logging.getLogger("small").addHandler(caplog.handler)
    settings = config.Config(optim=config.OptimConfig(lr=0.1, lr_scaling=scaling))
    optimizer = training.create_optimizer(nn.Linear(1, 1), settings, world_size=4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
    assert f"lr 0.1 x {factor:g} = {0.1 * factor:g} ({scaling})" in caplog.text


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_the_learning_rate_warms_up_and_decays_to_almost_zero(warmup: int) -> None:
    # Two groups of parameters, each with a rate of its own.
    parameters = nn.Linear(1, 1).parameters()
    optimizer = torch.optim.SGD([{"params": [next(parameters)], "lr": 0.1}, {"params": [next(parameters)], "lr": 0.02}])
    scheduler = training.create_lr_scheduler(optimizer, warmup, steps=20)
    rates = []
    for _ in range(20):
        scheduler(None)  # it does not look at the engine
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[1]["lr"] == pytest.approx(rates[-1] / 5)
    assert max(rates) == pytest.approx(0.1)
    assert rates[: max(warmup, 1)] == sorted(rates[: max(warmup, 1)])
    assert rates[max(warmup, 1) :] == sorted(rates[max(warmup, 1) :], reverse=True)
    assert rates[-1] < 0.002


def test_a_checkpoint_of_another_model_is_refused(alone: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(alone.path, tmp_path / "run")
    refused = call("train", "--train.run_dir", str(folder), *ONE, "--task.width", "8")
    assert refused.code == 2
    assert "is not a checkpoint of this model" in refused.errors
    assert "Traceback" not in refused.errors


def two_groups(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
    """Learn the last layer faster than the others, and let its weights decay."""
    head = {"params": model.get_submodule("head").parameters(), "lr": 2 * settings.optim.lr, "weight_decay": 0.1}
    others = {"params": model.get_submodule("layers").parameters(), "weight_decay": 0.0}
    return torch.optim.AdamW([others, head], settings.optim.lr)


def test_parameter_groups_keep_their_own_settings_over_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "create_optimizer", two_groups, raising=False)
    settings = ("--train.epochs", "2", "--train.log_every", "1")
    whole = train(tmp_path / "whole", 1, *settings)
    with monkeypatch.context() as stopping:
        stopping.setattr(early_signals, "received", {signal.SIGUSR1})
        answer = call("train", "--train.run_dir", str(tmp_path / "parts"), *settings, *ONE)
        assert answer.code == config.EXIT_RESUMABLE, answer.errors
    parts = train(tmp_path / "parts", 1, *settings)
    assert Path(parts.summary["resumed_from"]).name == "last_1.pt"
    assert_equal_weights(whole, parts, tolerance=0)
    for run in (whole, parts):
        others, head = run.saved()["optimizer"]["param_groups"]
        assert head["lr"] == pytest.approx(2 * others["lr"])
        assert (others["weight_decay"], head["weight_decay"]) == (0.0, 0.1)


def test_the_settings_of_a_resumed_run_win_over_its_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, "--train.epochs", "1")
    run = train(tmp_path / "run", 1, "--train.epochs", "2", "--optim.weight_decay", "0.5", "--optim.lr", "0.1")
    (group,) = run.saved()["optimizer"]["param_groups"]
    assert group["weight_decay"] == 0.5
    # The last step of a cosine over 17 steps: the first epoch was the warm-up, and its last step is the first of them.
    assert group["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * 16 / 17)) / 2)
