"""What a training learns, on any number of processes, in one go or in several."""

import contextlib
import itertools
import json
import math
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import ignite.distributed as idist
import numpy as np
import pytest
import torch
import yaml
from conftest import FOLDERS, PROJECT, Run, call, settings_here, start, train
from frame import (
    NO_DATA,
    backend,
    binding,
    config,
    curves,
    distributed,
    early_signals,
    engines,
    errors,
    objective,
    optimization,
    profiling,
    randomness,
)
from ignite.engine import Engine
from torch import nn
from torch.nn.functional import l1_loss

ONE = ("--distributed.nproc_per_node", "1")
OFF = profiling.Stopwatch()
# A short training whose steps are exact enough to compare.
EXACT = ("--optim.name", "sgd", "--optim.lr", "0.05", "--train.max_iterations", "30")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One training in two processes that the launcher starts, with every setting at its default."""
    return train(tmp_path_factory.mktemp("trained") / "run", 2, copies=False)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One short training in a single process."""
    return train(tmp_path_factory.mktemp("alone") / "run", 1, *EXACT)


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


def test_python_warns_of_nothing_that_this_project_does(trained: Run) -> None:
    assert re.findall(rf"{re.escape(str(PROJECT))}/(?:src|tests)/\S+ \w*Warning: .*", trained.log) == []


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
    from matplotlib.figure import Figure

    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **settings: figures.append(figure))
    values = {"train_loss": 2.0, "val_loss": 1.0, "val_error": 3.0, "val_other": 4.0}
    records = [{"epoch": 1, "iteration": 8, **values}, {"epoch": 2, "iteration": 16, **values}]
    curves.draw_curves(records, tmp_path / "curves.png", "points")
    assert figures[0].get_suptitle() == "points"
    assert [(panel.get_title(), panel.get_xlabel(), panel.get_ylabel()) for panel in figures[0].axes] == [
        ("loss", "epoch", "mean squared error"),
        ("error", "epoch", "validation error"),
        ("other", "epoch", "validation other"),
    ]
    # Two evaluations within an epoch; a metric that came to the task after the first.
    records[0]["val_error"] = math.nan
    del records[0]["val_other"]
    curves.draw_curves([*records, {**records[1], "iteration": 12}], tmp_path / "curves.png", "points")
    assert [line.get_label() for line in figures[1].axes[1].get_lines()][1:] == ["best 3"]
    assert [panel.get_xlabel() for panel in figures[1].axes] == ["step"] * 3


@pytest.mark.parametrize(("processes", "parts"), [(2, 1), (4, 4)])
def test_many_processes_learn_what_one_learns(alone: Run, tmp_path: Path, processes: int, parts: int) -> None:
    many = train(tmp_path / "many", processes, *EXACT, "--optim.accumulation_steps", str(parts))
    assert alone.records[-1]["iteration"] == many.records[-1]["iteration"] == 30
    for ours, theirs in zip(alone.records, many.records, strict=True):
        for name in ("train_loss", "val_loss", "val_error"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-5)
    assert_equal_weights(alone, many, tolerance=1e-5)


def offered(strategy: str) -> bool:
    """Tell whether the backend has the strategy; where it has not, see that it says so."""
    if strategy in distributed.transport.STRATEGIES:
        return True
    answer = call("train", "--distributed.strategy", strategy)
    assert answer.code == 2
    assert f"has no {strategy}: choose distributed.strategy ddp" in answer.errors
    return False


@pytest.mark.parametrize("strategy", ["local-sgd", "zero1", "fsdp2"])
def test_a_strategy_that_averages_every_step_learns_what_one_process_learns(
    alone: Run, tmp_path: Path, strategy: str
) -> None:
    if not offered(strategy):
        return
    # The mean of the weights after a step, with momentum, is what a step by the mean of the gradients leads to.
    settings = ("--distributed.strategy", strategy, "--distributed.average_every", "1")
    two = train(tmp_path / "two", 2, *EXACT, *settings)
    assert two.summary["weights_difference"] == 0.0
    assert_equal_weights(alone, two, tolerance=1e-5)
    # Any strategy resumes from the checkpoint of another one, with what the optimizer remembers.
    longer = (*EXACT, "--train.max_iterations", "48", "--optim.schedule", "constant")
    expected = train(Path(shutil.copytree(alone.path, tmp_path / "expected")), 1, *longer)
    assert_equal_weights(expected, train(two.path, 1, *longer), tolerance=1e-5)
    resumed = train(Path(shutil.copytree(alone.path, tmp_path / "resumed")), 2, *longer, *settings)
    assert resumed.summary["iteration"] == 48
    assert_equal_weights(expected, resumed, tolerance=1e-5)


def test_weights_that_are_averaged_now_and_then_learn_too(trained: Run, tmp_path: Path) -> None:
    if not offered("local-sgd"):
        return
    two = train(tmp_path / "two", 2, "--distributed.strategy", "local-sgd")
    assert two.summary["weights_difference"] == 0.0
    assert "weights are averaged every 8 steps" in two.log
    assert 0 < two.summary["val_error"] < 1.5 * trained.summary["val_error"]
    # They are other weights than those of gradients that are averaged in every step.
    assert two.summary["val_error"] != pytest.approx(trained.summary["val_error"], rel=1e-3)


@pytest.mark.parametrize("compression", ["fp16", "bf16", "powersgd"])
def test_gradients_travel_in_fewer_bytes_or_the_backend_refuses(alone: Run, tmp_path: Path, compression: str) -> None:
    settings = ("--distributed.compression", compression)
    if compression not in distributed.transport.COMPRESSIONS[settings_here().distributed.backend]:
        answer = call("train", *settings)
        assert answer.code == 2
        assert "choose distributed.compression none" in answer.errors
        return
    two = train(tmp_path / "two", 2, *EXACT, *settings)
    assert two.summary["weights_difference"] == 0.0
    said = {"powersgd": "gradients are exchanged as matrices of low rank"}
    assert said.get(compression, f"gradients are rounded to {compression}") in two.log
    assert_equal_weights(alone, two, tolerance=0.05 if compression == "powersgd" else 0.01)
    # Without rounding, two processes end within 1e-7.
    assert max(float((two.weights()[name] - weight).abs().max()) for name, weight in alone.weights().items()) > 1e-6


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


def test_each_of_several_losses_updates_its_own_group_in_turn() -> None:
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.ModuleDict({"first": first, "second": second})
    for layer in (first, second):
        nn.init.ones_(layer.weight)

    def losses(model: Any, batch: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        yield "one", (model["first"](batch) * model["second"](batch)).mean()
        # By now the first weight is 0.9.
        yield "two", (model["first"](batch) * model["second"](batch)).mean()

    in_turns = replace(binding.bind(None, NO_DATA), losses=losses)
    groups = [{"name": "one", "params": [first.weight]}, {"name": "two", "params": [second.weight]}]
    optimizer = torch.optim.SGD(groups, 0.1)
    scaler = torch.amp.GradScaler(enabled=False)
    batch = torch.ones(4, 1)
    loss, measured = engines.update_in_turns(model, optimizer, scaler, config.Config(), in_turns, OFF, batch)
    assert (first.weight.item(), second.weight.item()) == pytest.approx((0.9, 1 - 0.1 * 0.9))
    assert float(loss) == pytest.approx(1 + 0.9)
    assert {name: float(value) for name, value in measured.items()} == pytest.approx({"loss_one": 1, "loss_two": 0.9})
    # A weight of a group that does not learn stays as it is.
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer.param_groups[0]["params"].append(frozen)
    engines.update_in_turns(model, optimizer, scaler, config.Config(), in_turns, OFF, batch)
    assert (first.weight.item() < 0.9, frozen.item()) == (True, 1.0)
    optimizer.param_groups[1]["name"] = "three"
    with pytest.raises(
        errors.UsageError, match=r"losses in objective.py yields two, create_optimizer has groups one, three"
    ):
        engines.update_in_turns(model, optimizer, scaler, config.Config(), in_turns, OFF, batch)


def answering(answer: Any) -> Any:
    return lambda model, batch: answer


def test_what_several_losses_yield_by_mistake_is_named() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"name": "one", "params": model.parameters()}], 0.1)
    mean = model(torch.ones(4, 1)).mean()
    mistakes: list[tuple[Any, str]] = [
        ([("one", mean)], "returned list: yield a name and a loss"),
        (iter([]), "yields nothing: yield a name and a loss"),
        (iter([mean]), "yields Tensor: yield a name and a loss"),
        (iter([("one", 0.5)]), "yields float: let it be a tensor"),
        (iter([("one", model(torch.ones(4, 1)))]), r"yields numbers of the shape \(4, 1\): let it be their mean"),
        (iter([("one", mean.detach())]), "the loss has no gradient"),
    ]
    for yielded, sentence in mistakes:
        in_turns = replace(binding.bind(None, NO_DATA), losses=answering(yielded))
        scaler = torch.amp.GradScaler(enabled=False)
        with pytest.raises(errors.UsageError, match=sentence):
            engines.update_in_turns(model, optimizer, scaler, config.Config(), in_turns, OFF, None)


def test_the_objective_gets_the_settings_and_the_data_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[Any] = set()

    def forward(model: nn.Module, data: Any) -> Any:
        # The second one is the batch, whatever its name.
        return model(data["x"]), data["y"]

    def loss(outputs: torch.Tensor, targets: torch.Tensor, settings: Any) -> torch.Tensor:
        asked.add(("loss", settings.width))
        return nn.functional.mse_loss(outputs, targets)

    def metrics(device: torch.device, *, data: Any, settings: Any) -> Any:
        asked.add(("metrics", len(data.val), settings.width))
        return plain(device)

    def write_examples(model: nn.Module, folder: Path, step: int, data: Any) -> None:
        (folder / "examples").write_text(f"{step} {len(data.train)}")

    plain = objective.metrics
    whole = train(tmp_path / "plain", 1, "--train.epochs", "1", "--task.width", "8")
    for function in (forward, loss, metrics, write_examples):
        monkeypatch.setattr(objective, function.__name__, function, raising=False)
    run = train(tmp_path / "run", 1, "--train.epochs", "1", "--task.width", "8")
    assert asked == {("loss", 8), ("metrics", 300, 8)}
    assert (run.path / "examples/examples").read_text() == "16 1024"
    assert without_times(run.records) == without_times(whole.records)
    evaluated = json.loads(call("evaluate", "--checkpoint", str(run.path), *ONE).output)
    assert evaluated["val_error"] == run.records[-1]["val_error"]
    assert call("export", "--checkpoint", str(run.path), "--folder", str(tmp_path / "export")).code == 0
    monkeypatch.setattr(objective, "loss", lambda outputs, targets, weights: outputs.mean())
    refused = call("train", "--train.run_dir", str(tmp_path / "refused"), *ONE)
    assert refused.code == 1
    assert refused.errors.splitlines()[-1] == (
        "error: loss in task/objective.py: missing a required argument: 'weights': it is called with outputs and targets, "
        "and with the task's settings and data if it has parameters of these names"
    )


# All that draws random numbers or looks at several samples, measured and saved at odd moments.
RANDOM = ("--task.noise", "0.1", "--task.dropout", "0.2", "--task.batch_norm", "true", "--train.epochs", "3")
OFTEN = ("--train.evaluate_every", "12 steps", "--train.save_every", "5 steps", "--train.log_every", "3")


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: line[key] for key in line if key not in ("samples_per_second", "data_wait")} for line in lines]


@pytest.mark.parametrize(
    ("processes", "num_workers", "strategy"),
    [(1, 1, "ddp"), (2, 0, "ddp"), (2, 0, "local-sgd"), (2, 0, "zero1"), (2, 0, "fsdp2")],
)
def test_a_killed_run_ends_where_an_undisturbed_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, num_workers: int, strategy: str
) -> None:
    if not offered(strategy):
        return
    learning: tuple[str, ...] = (*RANDOM, *OFTEN, "--distributed.strategy", strategy)
    if strategy == "local-sgd":
        # Each rank has an average of its own weights, until they are averaged too, and its own count of an expert's steps.
        learning = (*learning, "--optim.ema_decay", "0.9", "--task.expert", "true")
    # The process dies in the first half of a step.
    parts = 2 if strategy == "fsdp2" else 1
    learning = (*learning, "--optim.accumulation_steps", str(parts))
    whole = train(tmp_path / "whole", processes, *learning)
    # A name of more bytes than characters.
    folder = tmp_path / "끝난 실험"
    settings = (*learning, "--train.run_dir", str(folder), "--data.num_workers", str(num_workers))
    with monkeypatch.context() as dying:
        dying.setenv("SMALL_DIES_IN_STEP", str(18 * parts))
        assert start(processes, "train", *settings).code not in (0, config.EXIT_RESUMABLE)
    killed = train(folder, processes, *settings)
    # The newest one may not have been on the disk yet.
    assert Path(killed.summary["resumed_from"]).stem in ("last_12", "last_15")
    assert [record["iteration"] for record in killed.records] == [12, 24, 36, 48]
    assert without_times(killed.records) == without_times(whole.records)
    assert without_times(killed.steps) == without_times(whole.steps)
    assert_equal_weights(whole, killed, tolerance=0)
    assert whole.summary["weights_difference"] == killed.summary["weights_difference"] == 0.0
    # What was measured is what the checkpoint does, with the statistics of BatchNorm.
    evaluated = json.loads(call("evaluate", "--checkpoint", str(killed.checkpoint()), *ONE).output)
    assert {key: evaluated[key] for key in ("val_loss", "val_error")} == {
        key: killed.records[-1][key] for key in ("val_loss", "val_error")
    }


@pytest.mark.parametrize(("processes", "strategy", "step"), [(1, "ddp", 30), (2, "ddp", 15), (2, "fsdp2", 15)])
def test_an_evaluation_that_fails_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, strategy: str, step: int
) -> None:
    if not offered(strategy):
        return
    # Of 30 steps.
    learning = (*RANDOM, *EXACT, "--train.evaluate_every", f"{step} steps", "--distributed.strategy", strategy)
    whole = train(tmp_path / "whole", processes, *learning)
    folder = tmp_path / "failed"
    settings = (*learning, "--train.run_dir", str(folder))
    with monkeypatch.context() as failing:
        failing.setenv("SMALL_METRICS", "failing")
        failed = start(processes, "train", *settings)
    assert failed.code not in (0, config.EXIT_RESUMABLE)
    assert "ZeroDivisionError: no sample is positive" in failed.errors
    continued = train(folder, processes, *settings)
    assert Path(continued.summary["resumed_from"]).stem == f"last_{step}"
    assert [record["iteration"] for record in continued.records] == list(range(step, 31, step))
    assert "evaluations until now" not in continued.log
    # A device that compiles, which does not show draws either, may round otherwise in another process.
    rounds = not distributed.hardware.SHOWS_DRAWS
    for mine, expected in ((continued.records, whole.records), (continued.steps, whole.steps)):
        nearly = [pytest.approx(record, rel=1e-5 if rounds else 0, abs=0) for record in without_times(expected)]
        assert without_times(mine) == nearly
    assert_equal_weights(whole, continued, tolerance=1e-6 if rounds else 0)


def test_every_step_and_rank_has_its_own_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = {randomness.stream(seed, rank, step) for seed in range(3) for rank in range(8) for step in range(100)}
    assert len(seeds) == 2400
    assert randomness.stream(0, 1, 2) == randomness.stream(0, 1, 2)

    class Drawn(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            drawn.append(float(torch.rand(())))
            return self.weight * x[:, 0]

        weight = nn.Parameter(torch.ones(()))

    drawn: list[float] = []
    # An optimizer that is not wrapped for the backend cannot take its step.
    monkeypatch.setattr(backend, "optimizer_step", lambda *arguments: None)
    for rank in (0, 1, 1):
        monkeypatch.setattr("ignite.distributed.get_rank", lambda rank=rank: rank)
        model = Drawn()
        optimizer = torch.optim.SGD([model.weight], 0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        trainer = engines.create_trainer(model, optimizer, scaler, config.Config(), binding.bind(None, NO_DATA), OFF)
        trainer.run([{"x": torch.ones(2, 3), "y": torch.ones(2)}] * 2)
    assert len(set(drawn)) == 4
    assert drawn[2:4] == drawn[4:6]
    randomness.seed_step(0, 1, 7)
    first = (torch.rand(2).tolist(), np.random.random_sample(), random.random())
    randomness.seed_step(0, 1, 7)
    assert (torch.rand(2).tolist(), np.random.random_sample(), random.random()) == first


def test_steps_are_logged_and_evaluations_come_as_often_as_asked(tmp_path: Path) -> None:
    settings = ("--train.max_iterations", "40", "--train.epochs", "1", "--train.evaluate_every", "15 steps")
    run = train(tmp_path / "run", 1, *settings, "--train.log_every", "10", "--optim.clip_norm", "1")
    assert [record["iteration"] for record in run.records] == [15, 30, 40]
    assert [step["iteration"] for step in run.steps] == [10, 20, 30, 40]
    names = {"epoch", "iteration", "loss", "lr", "samples_per_second", "data_wait", "grad_norm"}
    assert set(run.steps[0]) == names
    assert 0 < run.steps[0]["data_wait"] < 1
    assert 0 < run.steps[0]["grad_norm"] < 100
    # Ten of the fifteen steps before the first evaluation, and the first five of those before the second.
    losses = [step["loss"] for step in run.steps]
    assert run.records[0]["train_loss"] > losses[1]
    assert "step 10/40" in run.log
    assert "epoch 0.9375/2.5  step 15/40" in run.log
    best = min(run.records, key=lambda record: float(record["val_error"]))
    assert run.summary["best"] == {**best, "checkpoint": f"checkpoints/best_{best['iteration']}.pt"}
    assert (run.path / run.summary["best"]["checkpoint"]).exists()


@pytest.mark.parametrize("broken", ["loss", "weights"])
def test_what_is_not_a_number_ends_the_training_and_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    steps = itertools.count(1)

    class Break(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, loss: torch.Tensor) -> torch.Tensor:
            return loss * math.nan if broken == "loss" else loss.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * math.nan

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        plain = nn.functional.mse_loss(outputs, targets)
        broken_now = outputs.requires_grad and next(steps) == 20
        return Break.apply(plain) if broken_now else plain  # type: ignore[no-untyped-call]

    monkeypatch.setattr(objective, "loss", loss)
    folder = tmp_path / "run"
    settings = ("--train.save_every", "5 steps", "--train.log_every", "1000")
    refused = call("train", "--train.run_dir", str(folder), *settings, *ONE)
    assert (refused.code, refused.errors.splitlines()[-1].startswith("error: the ")) == (1, True), refused.errors
    assert {"loss": "loss is nan", "weights": "weights are not numbers"}[broken] in refused.errors
    assert "after step 20: lower optim.lr" in refused.errors
    assert f"the next start resumes from {folder}/checkpoints/last_16.pt, which is from before" in refused.errors
    # What has ended it is in the log too.
    assert (folder / "log.txt").read_text().splitlines()[-1].endswith(refused.errors.splitlines()[-1])
    assert sorted(file.name for file in (folder / "checkpoints").glob("last_*")) == ["last_15.pt", "last_16.pt"]
    assert all(weight.isfinite().all() for weight in Run(folder, "").weights().values())


def test_a_metric_that_is_not_a_number_is_null_in_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_METRICS", "nothing")
    short = train(tmp_path / "run", 1, "--train.epochs", "1")
    assert short.records[0]["val_nothing"] is None
    assert short.log.count("val_nothing: not a number; look at the validation data") == 1
    assert short.summary["best"]["val_nothing"] is None
    assert len(train(tmp_path / "run", 1, "--train.epochs", "2").records) == 2


def test_a_training_ends_when_it_no_longer_improves(tmp_path: Path) -> None:
    settings = ("--optim.lr", "1e-9", "--optim.schedule", "constant", "--train.patience", "2", "--train.epochs", "9")
    # So slow that no error is better than the first one.
    short = train(tmp_path / "run", 1, *settings, "--optim.name", "sgd", "--optim.weight_decay", "0")
    assert [record["epoch"] for record in short.records] == [1, 2, 3]
    assert short.summary["best"]["iteration"] == 16
    assert "ends early: no better score in the last 2 evaluations" in short.log
    refused = call("train", "--train.run_dir", str(short.path), *settings, *ONE, "--optim.name", "adamw")
    told = "is of another optimizer than this AdamW ('step'): keep optim.name"
    assert (refused.code, told in refused.errors) == (2, True), refused.errors
    again = train(tmp_path / "run", 1, *settings, "--optim.name", "sgd", "--optim.weight_decay", "0")
    assert "is complete: raise train.patience to train longer" in again.log
    assert len(again.records) == 3


def test_an_average_of_the_weights_is_measured_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("--optim.ema_decay", "0.9", "--train.epochs", "2", "--train.log_every", "5", *RANDOM[:6])
    whole = train(tmp_path / "whole", 1, *settings)
    plain = train(tmp_path / "plain", 1, *settings, "--optim.ema_decay", "null")
    assert whole.weights()["head.weight"].equal(plain.weights()["head.weight"])
    assert whole.records[-1]["val_error"] != plain.records[-1]["val_error"]
    with monkeypatch.context() as stopping:
        stopping.setattr(early_signals, "received", {signal.SIGUSR1})
        assert call("train", "--train.run_dir", str(tmp_path / "parts"), *settings, *ONE).code == config.EXIT_RESUMABLE
    parts = train(tmp_path / "parts", 1, *settings)
    assert parts.summary["resumed_from"].endswith("last_5.pt")
    assert without_times(parts.records) == without_times(whole.records)
    for kind in ("last", "best"):
        checkpoint = max((parts.path / "checkpoints").glob(f"{kind}_*.pt"), key=lambda file: file.stat().st_mtime)
        evaluated = json.loads(call("evaluate", "--checkpoint", str(checkpoint), *ONE).output)
        iteration = int(checkpoint.stem.split("_")[1])
        (record,) = (record for record in parts.records if record["iteration"] == iteration)
        assert evaluated["val_error"] == record["val_error"]


def test_what_is_frozen_stays_as_it_is_bit_for_bit(tmp_path: Path) -> None:
    settings = ("--task.frozen", "true", "--optim.ema_decay", "0.9", "--train.epochs", "2", "--data.batch_size", "48")
    runs = [train(tmp_path / "alone", 1, *settings)]
    if offered("local-sgd"):
        # The mean of two equal numbers is exact, that of three is not.
        runs.append(train(tmp_path / "three", 3, *settings, "--distributed.strategy", "local-sgd"))
    parts = [run.saved()[part] for run in runs for part in ("model", "average")]
    assert all(part["blocks.0.weight"].equal(parts[0]["blocks.0.weight"]) for part in parts)
    assert not any(part["blocks.2.weight"].equal(parts[0]["blocks.2.weight"]) for part in parts[1:])


def test_an_average_is_one_of_weights_that_it_can_follow() -> None:
    training = import_module("small.training")
    # As in training mode, where a module may keep weights that it merges for an evaluation.
    assert training.average_weights(nn.Linear(3, 2), 0.9, Engine(lambda engine, batch: None)).training
    with pytest.raises(errors.UsageError, match=r"weights in torch\.bfloat16 would round its small steps away"):
        training.average_weights(nn.Linear(3, 2).bfloat16(), 0.9, Engine(lambda engine, batch: None))


def test_an_average_of_many_steps_forgets_the_first_ones_soon(tmp_path: Path) -> None:
    """BatchNorm's statistics are those of now, which do not fit to weights that are still half those of the beginning."""
    settings = ("--task.batch_norm", "true", "--train.epochs", "6", *RANDOM[:2])
    plain = train(tmp_path / "plain", 1, *settings)
    average = train(tmp_path / "average", 1, *settings, "--optim.ema_decay", "0.999")
    assert average.records[-1]["val_error"] < 1.2 * plain.records[-1]["val_error"]


def test_the_log_says_what_depends_on_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("--train.max_iterations", "2", "--data.batch_size", "60", "--optim.accumulation_steps", "2")
    plain = train(tmp_path / "plain", 1, *settings)
    assert "results change with" not in plain.log
    assert "data: points, 1024 training and 300 validation samples" in plain.log
    assert "training: 2 steps of 60 samples, 60 on each process; an epoch has 17 steps, and leaves out 4" in plain.log
    batch_norm = train(tmp_path / "batch_norm", 1, *settings, "--task.batch_norm", "true")
    assert "BatchNorm1d normalizes over 30 samples at a time: results change with" in batch_norm.log
    assert "the loss of a batch is" not in plain.log
    with monkeypatch.context() as changing:
        # Divided by what differs from part to part, as weights of the samples are.
        changing.setattr(objective, "loss", lambda outputs, targets: l1_loss(outputs, targets) / targets.norm())
        weighted = train(tmp_path / "weighted", 1, *settings)
    assert re.search(r"the loss of a batch is \S+, the mean of those of its halves \S+: results change", weighted.log)
    assert "broadcasting" not in plain.log
    with monkeypatch.context() as changing:
        forward = objective.forward
        changing.setattr(objective, "forward", lambda model, batch: (forward(model, batch)[0][:, None], batch["y"]))
        column = train(tmp_path / "column", 1, *settings)
    assert re.search(r"outputs have the shape \((\d+), 1\) and targets \(\1,\): broadcasting", column.log)
    dropout = train(tmp_path / "dropout", 1, *settings, "--task.dropout", "0.1")
    shown = "a step draws random numbers, different ones on each rank: results change with" in dropout.log
    assert shown == distributed.hardware.SHOWS_DRAWS


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
    # Killed before the summary, and while the best checkpoint was written, that of the last step.
    assert summary["best"]["checkpoint"] == "checkpoints/best_32.pt"
    (run.path / "summary.json").unlink()
    (run.path / "checkpoints/best_32.pt").unlink()
    again = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert (again.summary["val_loss"], again.summary["best"]) == (summary["val_loss"], summary["best"])
    assert (run.path / "checkpoints/best_32.pt").exists()
    # Killed between the removal of an old checkpoint and the writing of the new one.
    for name in ("last_16.pt", *(file.name for file in (run.path / "checkpoints").glob("best_*.pt"))):
        (run.path / "checkpoints" / name).unlink()
    more = train(tmp_path / "run", 1, "--train.epochs", "4")
    assert more.summary["resumed_from"].endswith("last_32.pt")
    files = {file.name.partition("_")[0] for file in (run.path / "checkpoints").iterdir()}
    assert files == {"best", "last"}
    # Killed in a step before the first checkpoint, or while that was written.
    for file in (more.path / "checkpoints").iterdir():
        file.rename(tmp_path / file.name)
    (more.path / "checkpoints" / ".last_16.pt.part").touch()
    anew = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert [step["iteration"] for step in anew.steps] == [10, 20, 30]
    assert [record["iteration"] for record in anew.records] == [16, 32]
    assert not list((anew.path / "checkpoints").glob(".*"))
    for name, sentence in (
        ("last_32.pt", "has reached its end: raise train.epochs to train it further"),
        ("best_32.pt", "holds weights alone, to be measured: let train.resume be a last_*"),
    ):
        checkpoint = str(anew.path / "checkpoints" / name)
        place = ("--train.run_dir", str(tmp_path / "next"), "--train.resume", checkpoint)
        refused = call("train", *place, "--train.epochs", "2", *ONE)
        assert (refused.code, sentence in refused.errors) == (2, True), refused.errors
    # Into another folder, which has none of these files.
    other = train(tmp_path / "other", 1, "--train.epochs", "6", "--train.resume", str(tmp_path / "last_64.pt"))
    assert len(list((other.path / "checkpoints").iterdir())) == 3


def test_a_run_that_begins_from_a_checkpoint_resumes_from_its_own(tmp_path: Path) -> None:
    """The same command again, as after a signal: what was learned since is not thrown away."""
    first = train(tmp_path / "run", 1, "--train.epochs", "2", "--optim.schedule", "constant")
    older = first.path / "checkpoints/last_16.pt"
    settings = ("--optim.schedule", "constant", "--optim.lr", "0.001", "--train.resume", str(older))

    def content() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in first.path.rglob("*.*") if file.name != "log.txt"}

    # What is refused has changed nothing.
    before = content()
    refused = call("train", "--train.run_dir", str(first.path), "--train.epochs", "1", *settings, *ONE)
    assert (refused.code, "was trained with other settings" in refused.errors) == (2, True), refused.errors
    assert content() == before
    begun = train(first.path, 1, "--train.epochs", "2", *settings)
    assert (begun.summary["resumed_from"], begun.checkpoint().name) == (str(older), "last_32.pt")
    assert "they are kept as last_32.pt.replaced" in begun.log
    older.unlink()
    again = train(first.path, 1, "--train.epochs", "3", *settings)
    assert again.summary["resumed_from"].endswith("run/checkpoints/last_32.pt")
    assert [record["iteration"] for record in again.records] == [16, 32, 48]
    # That of another run, whose evaluations and checkpoints are not those of this one.
    other = shutil.copy(again.checkpoint(), tmp_path)
    refused = call("train", "--train.run_dir", str(first.path), "--train.resume", str(other), *ONE)
    assert (refused.code, "run holds a run already: choose another" in refused.errors) == (1, True), refused.errors


def test_a_finished_run_is_kept_unless_more_epochs_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(tmp_path / "run", 1, "--train.epochs", "1")
    before = first.checkpoint().stat().st_mtime_ns
    again = train(tmp_path / "run", 1, "--train.epochs", "1")
    assert "is complete" in again.log
    assert again.checkpoint().stat().st_mtime_ns == before
    refused = call("train", "--train.run_dir", str(first.path), "--train.epochs", "1", "--optim.lr", "0.1", *ONE)
    assert refused.code == 2
    assert "was trained with other settings (optim.lr 0.003 -> 0.1): choose another" in refused.errors
    refused = call("train", "--train.run_dir", str(first.path), "--train.resume", "none", *ONE)
    assert (refused.code, "holds a run already" in refused.errors) == (1, True), refused.errors
    # Its checkpoints would be taken for those of the new run.
    (first.path / "config.yaml").rename(tmp_path / "config.yaml")
    shutil.copytree(first.path, tmp_path / "other")
    for resume in ("none", str(next((tmp_path / "other/checkpoints").glob("last_*")))):
        refused = call("train", "--train.run_dir", str(first.path), "--train.resume", resume, *ONE)
        assert (refused.code, "holds a run already" in refused.errors) == (1, True), refused.errors
    (tmp_path / "config.yaml").rename(first.path / "config.yaml")
    refused = call("train", "--train.run_dir", str(first.path), "--train.resume", "nowhere.pt", *ONE)
    assert (refused.code, "train.resume nowhere.pt is no checkpoint" in refused.errors) == (2, True), refused.errors
    settings = (first.path / "config.yaml").read_text()
    for change, sentence in (
        (("--data.batch_size", "128"), "with 64 samples in a batch, and now there are 128: keep the data"),
        # An epoch has as many steps.
        (("--task.train_size", "1025"), "with 1024 training samples, and now there are 1025: keep the data"),
        (("--task.val_size", "9"), "validation samples, and now there are 9: keep the data"),
    ):
        refused = call("train", "--train.run_dir", str(first.path), *ONE, *change, "--train.epochs", "2")
        assert (refused.code, sentence in refused.errors) == (2, True), refused.errors
    assert (first.path / "config.yaml").read_text() == settings
    more = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert [record["epoch"] for record in more.records] == [1, 2]
    # The schedule is that of the two epochs, and ends with them.
    assert more.records[-1]["lr"] < 1e-4
    lost = call("evaluate", "--checkpoint", str(first.path / "nowhere.pt"), "--distributed.nproc_per_node", "1")
    assert (lost.code, "there is no checkpoint" in lost.errors) == (2, True), lost.errors
    assert "settings changed since this run began: train.epochs 1 -> 2" in more.log
    # What is trained longer is not finished, whatever becomes of it.
    monkeypatch.setenv("SMALL_LACKS_SAMPLE", "1")
    assert call("train", "--train.run_dir", str(first.path), "--train.epochs", "3", *ONE).code == 1
    assert not (first.path / "summary.json").exists()


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
    train(tmp_path / "run", 1, "--train.epochs", "1")
    run = train(tmp_path / "run", 1, "--train.amp", "bf16")
    assert run.summary["resumed_from"] and run.summary["val_error"] <= 0.15
    if "fp16" not in distributed.hardware.AMP:
        refused = call("train", "--train.amp", "fp16")
        assert (refused.code, "train.amp fp16 does not work here: choose none or bf16" in refused.errors) == (2, True)
        return
    # A checkpoint without fp16 has no scale of the loss.
    before = run.weights()
    run = train(tmp_path / "run", 1, "--train.amp", "fp16", "--train.epochs", str(run.summary["epoch"] + 1))
    assert run.summary["resumed_from"] and run.summary["val_error"] <= 0.15
    # A step whose gradients are too large for fp16 is left out.
    assert not any(torch.equal(weight, before[name]) for name, weight in run.weights().items())


def test_first_weights_may_be_drawn_from_any_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training: Any = import_module("small.training")
    create, drawn = training.create_model, list[tuple[float, ...]]()

    def drawing(*arguments: Any) -> nn.Module:
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))
        model: nn.Module = create(*arguments)
        return model

    monkeypatch.setattr(training, "create_model", drawing)
    for number, seed in enumerate("001"):
        train(tmp_path / str(number), 1, "--train.max_iterations", "1", "--train.seed", seed)
    assert drawn[0] == drawn[1]
    assert not {*drawn[0]} & {*drawn[2]}


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_grows_with_the_world_as_asked(
    scaling: Literal["none", "linear", "sqrt"], factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="small")
    settings = config.Config(optim=config.OptimConfig(lr=0.1, lr_scaling=scaling))
    optimizer = optimization.create_optimizer(nn.Linear(1, 1), settings, world_size=4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
    assert f"lr 0.1 x {factor:g} = {0.1 * factor:g} (lr_scaling {scaling})" in caplog.text
    assert "in no group" not in caplog.text
    assert "fused" not in caplog.text


def test_an_optimizer_of_ones_own_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def create(model: nn.Linear, settings: config.Config) -> torch.optim.Optimizer:
        return torch.optim.AdamW([model.weight], settings.optim.lr)

    monkeypatch.setattr(objective, "create_optimizer", create, raising=False)
    caplog.set_level("INFO", logger="small")
    optimization.create_optimizer(nn.Linear(3, 2), config.Config(), world_size=1)
    assert "2 parameters are in no group of the optimizer" in caplog.text
    assert "optim.name" not in caplog.text
    assert ("optimizer: AdamW(..., fused=backend.FUSED_OPTIMIZER)" in caplog.text) == backend.FUSED_OPTIMIZER
    asked = config.Config(optim=config.OptimConfig(name="sgd"))
    optimization.create_optimizer(nn.Linear(3, 2), asked, world_size=1)
    assert "optim.name sgd counts for nothing: create_optimizer in task/objective.py has AdamW" in caplog.text


class Limited(torch.optim.SGD):
    """It has a setting of its own beside those of its groups."""

    used: ClassVar[set[float]] = set()

    def __init__(self, weights: Any, lr: float = 0.1, limit: float = math.inf) -> None:
        super().__init__(weights, lr)
        self.limit = limit

    def step(self, *arguments: Any) -> Any:
        self.used.add(self.limit)
        return super().step(*arguments)


def test_an_optimizer_of_ones_own_keeps_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
        # Rates such as those of numpy's geomspace.
        groups = [{"params": [weight], "lr": np.float64(0.1)} for weight in model.parameters()]
        return Limited(groups, limit=0.5)

    monkeypatch.setattr(objective, "create_optimizer", create, raising=False)
    train(tmp_path / "run", 1, "--train.epochs", "1")
    assert Limited.used == {0.5}
    run = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert Path(run.summary["resumed_from"]).name == "last_16.pt"


class Both(torch.optim.Optimizer):
    """One optimizer for matrices and another for the rest, which hold their state themselves."""

    def __init__(self, model: nn.Module) -> None:
        weights = list(model.parameters())
        kinds: Any = ([one for one in weights if one.ndim > 1], [one for one in weights if one.ndim < 2])
        self.parts = [torch.optim.SGD(kinds[0], 0.1, momentum=0.9), torch.optim.AdamW(kinds[1])]
        super().__init__([group for part in self.parts for group in part.param_groups], {})


class Saving(Both):
    """It saves what both remember, but gives them groups of their own when it loads that."""

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


class Resuming(Saving):
    """This one is right."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def test_an_optimizer_whose_state_would_not_be_saved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    temperature = nn.Parameter(torch.ones(3))
    mistakes: list[tuple[Any, str]] = [
        (Both, "Both leaves its work to SGD, whose state no checkpoint would hold"),
        (Saving, "Saving and SGD, .* have different groups after load_state_dict"),
        (lambda model: [torch.optim.SGD(model.parameters())], "create_optimizer in task/objective.py returned list"),
        (lambda model: torch.optim.SGD([*model.parameters(), temperature]), "updates 3 parameters outside the model"),
    ]
    for create, sentence in mistakes:
        monkeypatch.setattr(objective, "create_optimizer", lambda model, settings: create(model), raising=False)  # noqa: B023
        with pytest.raises(errors.UsageError, match=sentence):
            optimization.create_optimizer(nn.Linear(3, 2), config.Config(), world_size=1)
    monkeypatch.setattr(objective, "create_optimizer", lambda model, settings: Resuming(model))
    assert isinstance(optimization.create_optimizer(nn.Linear(3, 2), config.Config(), world_size=1), Resuming)


def test_an_optimizer_that_keeps_its_state_on_one_rank_is_not_saved_as_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    layer(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(idist, "get_world_size", lambda: 2)
    everyones: list[Any] = []
    monkeypatch.setattr(backend, "all_gather_object", lambda mine: [mine, *(everyones or [mine])])
    optimization.require_state_of_all(optimizer, 1)
    everyones.append([True, False])
    with pytest.raises(errors.UsageError, match="remember something of different weights after step 1"):
        optimization.require_state_of_all(optimizer, 1)


class Switching(torch.optim.SGD):
    """It measures other weights than it trains, as schedule-free optimizers do: here, twice as large."""

    def eval(self) -> None:
        self.scale(2)

    def train(self) -> None:
        self.scale(0.5)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight *= factor


def test_the_weights_that_an_optimizer_means_to_be_used_are_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
        return Switching(model.parameters(), settings.optim.lr)

    monkeypatch.setattr(objective, "create_optimizer", create, raising=False)
    run = train(tmp_path / "run", 1, "--train.max_iterations", "4")
    best = run.path / run.summary["best"]["checkpoint"]
    saved = torch.load(best, weights_only=True)["model"]
    for name, weight in run.weights().items():
        if weight.is_floating_point():
            torch.testing.assert_close(saved[name], 2 * weight)
    measured = json.loads(call("evaluate", "--checkpoint", str(best), *ONE).output)
    assert measured["val_loss"] == run.records[-1]["val_loss"]


@pytest.mark.parametrize("warmup", [0, 1, 5])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_learning_rate_warms_up_and_decays_to_its_floor(schedule: Literal["cosine", "linear"], warmup: int) -> None:
    # Two groups of parameters, each with a rate of its own.
    parameters = nn.Linear(1, 1).parameters()
    optimizer = torch.optim.SGD([{"params": [next(parameters)], "lr": 0.1}, {"params": [next(parameters)], "lr": 0.02}])
    settings = config.OptimConfig(schedule=schedule, warmup=f"{warmup} steps", lr_floor=0.1)
    scheduler = optimization.create_lr_scheduler(optimizer, settings, steps_per_epoch=7, steps=20)
    rates = []
    for _ in range(20):
        scheduler(None)  # it does not look at the engine
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[1]["lr"] == pytest.approx(rates[-1] / 5)
    assert max(rates) == pytest.approx(0.1)
    assert rates[: max(warmup, 1)] == sorted(rates[: max(warmup, 1)])
    assert rates[max(warmup, 1) :] == sorted(rates[max(warmup, 1) :], reverse=True)
    assert 0.01 <= rates[-1] < 0.01 + 0.09 / 10
    if schedule == "linear" and not warmup:
        assert rates[10] == pytest.approx(0.1 - 0.09 / 2)


def test_a_constant_learning_rate_stays_after_a_warm_up_in_epochs() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    settings = config.OptimConfig(schedule="constant", warmup="0.5 epochs")
    scheduler = optimization.create_lr_scheduler(optimizer, settings, steps_per_epoch=8, steps=20)
    rates = []
    for _ in range(20):
        scheduler(None)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.025, 0.05, 0.075, *[0.1] * 17])


def test_a_checkpoint_of_another_model_is_refused(alone: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(alone.path, tmp_path / "run")
    refused = call("train", "--train.run_dir", str(folder), *ONE, "--task.width", "8")
    assert refused.code == 2
    assert "is not a checkpoint of this model" in refused.errors
    assert "Traceback" not in refused.errors


def test_the_score_of_a_run_stays_the_same(alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(alone.path, tmp_path / "run")
    monkeypatch.setattr(objective, "SCORE", "loss")
    more = (*EXACT, "--train.max_iterations", "40")
    refused = call("train", "--train.run_dir", str(folder), *ONE, *more)
    said = "error: the SCORE of this run was error, of which less is better, and cannot be compared"
    assert (refused.code, refused.errors.count(said)) == (2, 1), refused.errors
    # Another run may begin from it, and finds a best one of its own.
    begun = train(tmp_path / "other", 1, *more, "--train.resume", str(alone.checkpoint()))
    assert (begun.path / begun.summary["best"]["checkpoint"]).exists()


def test_fused_updates_resume_with_their_count_of_steps_on_the_device() -> None:
    # A device that computes nothing.
    weight = nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {"step": torch.tensor(3.0)}
    optimization.lay_out_like_weights(optimizer)
    assert optimizer.state[weight]["step"].device.type == "cpu"
    # One that shares its state out has another inside, which updates.
    optimizer.param_groups[0]["fused"] = True
    outside: Any = SimpleNamespace(param_groups=[], optim=optimizer)
    optimization.lay_out_like_weights(outside)
    assert optimizer.state[weight]["step"].device.type == "meta"


def test_an_average_of_weights_cannot_begin_in_the_middle(alone: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(alone.path, tmp_path / "run")
    more = (*EXACT, "--train.max_iterations", "40", "--optim.ema_decay", "0.9")
    refused = call("train", "--train.run_dir", str(folder), *ONE, *more)
    assert (refused.code, refused.errors.count("holds no average of the weights: set optim.ema_decay null")) == (2, 1)


def test_ranks_that_train_apart_go_on_with_what_belongs_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    local_sgd = import_module("small.local_sgd")
    # A device that computes nothing, on which an optimizer keeps its count of steps.
    weight = nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.SGD([weight])
    trainer: Any = SimpleNamespace(state=SimpleNamespace(iteration=1))
    model, scaler = nn.BatchNorm1d(1), torch.amp.GradScaler("cpu", init_scale=4.0)
    average = local_sgd.WeightAverage(model, model, optimizer, trainer, scaler)
    # After a checkpoint, all are equal: nothing is averaged before the next step.
    average.average()
    assert not optimizer.state[weight]
    trainer.state.iteration = 2
    others = [{"step": ((), torch.float32, "meta"), "momentum_buffer": ((2,), torch.float32, "meta")}]
    monkeypatch.setattr(local_sgd.backend, "all_gather_object", lambda mine: [others])
    average.even_out()
    made = {name: (value.shape, value.device.type) for name, value in optimizer.state[weight].items()}
    assert made == {"step": ((), "meta"), "momentum_buffer": ((2,), "meta")}
    # The scale of rank 0 is the one that is saved.
    scales = [torch.amp.GradScaler("cpu", init_scale=scale).state_dict() for scale in (512.0, 4.0)]
    monkeypatch.setattr(local_sgd.backend, "all_gather_object", lambda mine: scales)
    monkeypatch.setattr(local_sgd.WeightAverage, "even_out", lambda self: None)
    monkeypatch.setattr(local_sgd.collectives, "average", lambda tensors: None)
    # And so are its buffers, which a training may compute with.
    monkeypatch.setattr(local_sgd.collectives, "broadcast", lambda tensors: [tensor.fill_(3) for tensor in tensors])
    average.average()
    assert scaler.get_scale() == 512.0
    assert float(model.state_dict()["running_mean"]) == 3.0
    # Weights without a gradient are averaged where the model itself has changed them, on each rank as it learned.
    model.weight.requires_grad_(False)
    for equal in (True, False):
        averaged: list[torch.Tensor] = []
        monkeypatch.setattr(local_sgd.collectives, "are_equal", lambda tensors: equal)  # noqa: B023
        monkeypatch.setattr(local_sgd.collectives, "average", averaged.extend)
        trainer.state.iteration += 1
        average.average()
        assert [any(tensor is one for tensor in averaged) for one in model.parameters()] == [not equal, True]


def two_groups(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
    """Learn the last layer faster than the others, and let its weights decay."""
    decay = 10 * settings.optim.weight_decay
    head = {"params": model.get_submodule("head").parameters(), "lr": 2 * settings.optim.lr, "weight_decay": decay}
    others = {"params": model.get_submodule("blocks").parameters(), "weight_decay": 0.0}
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
    for trained in (whole, parts):
        others, head = trained.saved()["optimizer"]["param_groups"]
        assert head["lr"] == pytest.approx(2 * others["lr"])
        assert (others["weight_decay"], head["weight_decay"]) == (0.0, 0.1)
    more = train(tmp_path / "parts", 1, "--train.epochs", "3", "--optim.weight_decay", "0.02")
    others, head = more.saved()["optimizer"]["param_groups"]
    assert (others["weight_decay"], head["weight_decay"]) == (0.0, 0.2)


class Counting(torch.optim.SGD):
    """It keeps in its groups what it goes by, as optimizers without a schedule do."""

    def step(self, *arguments: Any) -> Any:
        result = super().step(*arguments)
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return result


def test_what_an_optimizer_counts_in_its_groups_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
        optimizer = Counting(model.parameters(), settings.optim.lr, weight_decay=settings.optim.weight_decay)
        optimizer.param_groups[0]["k"] = 0
        return optimizer

    monkeypatch.setattr(objective, "create_optimizer", create, raising=False)
    train(tmp_path / "run", 1, "--train.epochs", "1", "--optim.schedule", "constant")
    more = ("--train.epochs", "2", "--optim.schedule", "constant", "--optim.weight_decay", "0.5")
    run = train(tmp_path / "run", 1, *more)
    (group,) = run.saved()["optimizer"]["param_groups"]
    assert (group["k"], group["weight_decay"], group["lr"]) == (32, 0.5, 0.003)


def test_the_settings_of_a_resumed_run_win_over_its_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, "--train.epochs", "1")
    run = train(tmp_path / "run", 1, "--train.epochs", "2", "--optim.weight_decay", "0.5", "--optim.lr", "0.1")
    (group,) = run.saved()["optimizer"]["param_groups"]
    assert group["weight_decay"] == 0.5
    # The last step of a cosine over 17 steps: the first epoch was the warm-up, and its last step is the first of them.
    assert group["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * 16 / 17)) / 2)
