"""How many processes are worth it: what is measured, and what follows from it."""

import csv
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import call, reason_not_to_start
from frame import distributed, objective, prediction, scaling, trials


def measured(processes: int, batch_size: int, milliseconds: float, nodes: int = 1) -> Any:
    speed = 1e3 * batch_size / milliseconds
    return scaling.Measured(nodes, processes, batch_size, milliseconds, speed, exchange=0.0, memory_mib=1, wall_s=1.0)


def test_the_reason_of_a_failure_is_one_line() -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: what is wrong\n'
    told = {
        f"12:00:00 step 1\n[rank 1] failed at step 2:\n{traceback}": "[rank 1] failed at step 2: ValueError: what is wrong",
        "12:00:00 step 1\nerror: no room: make some\nmore": "no room: make some",
        "[0]<stderr>:12:00:00 step 1\n[1]<stderr>:error: no room: make some\n": "no room: make some",
        "killed": "killed",
    }
    assert {said: trials.reason(said) for said in told} == told


def test_every_number_of_processes_trains_with_every_batch(tmp_path: Path) -> None:
    processes = [1] if reason_not_to_start(2) else [1, 2]
    folder = tmp_path / "scaling"
    asked = ("--processes", ",".join(map(str, processes)), "--batches", "64,32", "--steps", "4")
    answer = call("scaling", *asked, "--train.run_dir", str(folder))
    assert answer.code == 0, answer.errors
    with (folder / "scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = [(str(number), batch) for batch in ("32", "64") for number in processes]
    assert [(row["processes"], row["batch_size"]) for row in rows] == expected
    assert {row["nodes"] for row in rows} == {"1"}
    for row in rows:
        speed = 1e3 * float(row["batch_size"]) / float(row["milliseconds"])
        assert float(row["samples_per_second"]) == pytest.approx(speed)
        assert 0 <= float(row["exchange"]) < 1
        assert float(row["wall_s"]) > float(row["milliseconds"]) / 1e3 * 4
    assert (folder / "scaling.png").stat().st_size > 1000
    # The trainings themselves are gone.
    names = {"scaling.csv", "scaling.png"} | ({"predicted.csv"} if len(processes) > 1 else set())
    assert {file.name for file in folder.iterdir()} == names


def test_a_rank_of_a_world_that_is_not_there_is_told_what_memory_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layers of 3 x 64, 64 x 64 and 64 x 1, with biases.
    weights = 3 * 64 + 64 + 64 * 64 + 64 + 64 + 1
    asked = ("--simulate", "--world-size", "4", "--data.batch_size", "64", "--task.width", "64")
    answer = call("scaling", *asked, "--train.run_dir", str(tmp_path))
    assert answer.code == 0, answer.errors
    with (tmp_path / "simulated.csv").open() as file:
        rows = {row["strategy"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["ddp", *(name for name in ("zero1", "fsdp2") if name in distributed.transport.STRATEGIES)]

    def numbers(strategy: str, part: str) -> float:
        return float(rows[strategy][part]) * 2**20 / 4

    # Of each weight, two numbers, and of each tensor of them, the steps.
    assert numbers("ddp", "weights") == numbers("ddp", "gradients") == weights
    assert numbers("ddp", "optimizer") == 2 * weights + 6
    # For its 16 samples: inputs, what comes out of both layers, and their tanh, or some of these.
    assert 16 * (3 + 64 + 64) <= numbers("ddp", "activations") <= 16 * (3 + 4 * 64 + 2)
    if "fsdp2" in rows:
        # Rows of a matrix are shared out: the single one of the last layer is on the first rank.
        share = (3 * 64 + 64 + 64 * 64 + 64) / 4 + 64 + 1
        assert numbers("fsdp2", "weights") == numbers("fsdp2", "gradients") == share
        assert numbers("fsdp2", "gathered") == 2 * weights
        assert weights / 2 < numbers("zero1", "optimizer") < 2 * weights
    # Of each of its four blocks, what goes in, and what goes into the last layer.
    again = call("scaling", *asked, "--train.activation_checkpointing", "true", "--train.run_dir", str(tmp_path))
    if distributed.hardware.COMPUTES_AGAIN:
        assert again.code == 0, again.errors
        with (tmp_path / "simulated.csv").open() as file:
            rows = {row["strategy"]: row for row in csv.DictReader(file)}
        assert numbers("ddp", "activations") == pytest.approx(16 * (3 + 3 * 64 + 64 + 2), rel=0.02)
    else:
        assert (again.code, "activation_checkpointing does not work here" in again.errors) == (2, True), again.errors
    # More samples in a step than this training set has, which this task itself would refuse.
    monkeypatch.setattr(import_module("small.task.settings"), "validate", lambda config: None)
    large = ("--simulate", "--world-size", "512", "--data.batch_size", "8192", "--train.run_dir", str(tmp_path))
    answer = call("scaling", *large)
    assert (answer.code, "for a step of 16 samples" in answer.output) == (0, True), answer.errors
    refused = call("scaling", *asked[:2], "5", *asked[3:], "--train.run_dir", str(tmp_path))
    assert (refused.code, refused.errors.count("is not divisible by 5")) == (2, 1), refused.errors


def test_the_size_of_a_world_that_is_not_there_is_asked_for_with_it() -> None:
    answer = call("scaling", "--world-size", "4")
    assert (answer.code, answer.errors.count("add --simulate, or choose --processes")) == (2, 1), answer.errors


@pytest.mark.parametrize("what", ["item", "shape"])
def test_a_step_that_needs_numbers_cannot_be_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.mean() * outputs.mean().item() if what == "item" else outputs[targets > 0].mean()

    monkeypatch.setattr(objective, "loss", loss)
    asked = ("--simulate", "--world-size", "4", "--data.batch_size", "64", "--train.run_dir", str(tmp_path))
    refused = call("scaling", *asked)
    assert (refused.code, refused.errors.count("\n")) == (1, 1), refused.errors
    assert "error: the step needs the numbers of its tensors (aten." in refused.errors


def test_the_preset_takes_batches_as_far_as_there_are_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    monkeypatch.setattr(scaling, "scaling", lambda config, settings, numbers: asked.update(numbers) or len(settings))
    answer = call("scaling", "--preset", "batch-crossover", "--train.seed", "1", "--train.run_dir", str(tmp_path))
    # What is no setting of each training, such as the folder of the study, is not handed on: the seed is.
    assert answer.code == 2 + len(distributed.TRIAL)
    batches = [int(number) for number in asked["batches"].split(",")]
    assert batches[:4] == [2, 8, 32, 128]
    # The data of these tests have 1,024 samples.
    assert batches[-1] == 512


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--processes", "0"], "--processes 0 must be numbers from 1 on"),
        (["--batches", "many"], "--batches many must be numbers"),
        (["--processes", "3", "--batches", "64"], "no batch is divisible by a number of processes"),
        (["--batches", "64,2048"], "--batches 2048 is larger than the training set: choose at most 1024"),
    ],
)
def test_numbers_that_cannot_work_are_refused(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    answer = call("scaling", "--train.run_dir", str(tmp_path / "scaling"), *arguments)
    assert (answer.code, sentence in answer.errors, answer.errors.count("\n")) == (2, True, 1), answer.errors
    assert not (tmp_path / "scaling").exists()


def test_only_a_launcher_that_starts_many_nodes_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.launcher, "ON_NODES", None)
    answer = call("scaling", "--nodes", "1,2", "--train.run_dir", str(tmp_path / "scaling"))
    assert (answer.code, answer.errors.count("\n")) == (2, 1), answer.errors
    assert "does not start other nodes from this one: leave --nodes away" in answer.errors
    assert not (tmp_path / "scaling").exists()
    # Where a cluster names the run directory, no setting does.
    monkeypatch.setattr(distributed.launcher, "ON_NODES", {"RUN_DIR": "{run_dir}"})
    start = trials.started_on_nodes(Path("runs/one"), nodes=2, processes=4)
    assert start.variables == {"RUN_DIR": "runs/one", "NNODES": "2", "NPROC_PER_NODE": "2"}
    assert start.options == {}


def test_the_crossover_is_the_batch_from_which_more_processes_stay_faster() -> None:
    # At 16 two processes were faster by chance.
    alone = {8: 1.0, 16: 2.0, 32: 4.0, 64: 8.0}
    two = {8: 3.0, 16: 1.9, 32: 4.1, 64: 5.0}
    rows = [measured(1, batch, spent) for batch, spent in alone.items()]
    rows += [measured(2, batch, spent) for batch, spent in two.items()]
    rows += [measured(4, 64, 9.0), measured(8, 128, 9.0), measured(2, 64, 4.0, nodes=2)]
    assert list(scaling.crossovers(rows)) == [
        "2 processes are faster than one from batches of 64 on, 1.60 times as fast at 64",
        "4 processes are slower than one at every batch that was measured",
        "2 processes on 2 nodes are faster than one from batches of 64 on, 2.00 times as fast at 64",
    ]


def test_the_exchange_takes_what_its_messages_take() -> None:
    link = prediction.Link(latency_s=1.0, bandwidth=10.0)
    # Six messages of a quarter of the size; up two levels and down again, of all of it; three others send and receive all.
    assert link.ring(100, 4) == pytest.approx(6 * (1 + 100 / 4 / 10))
    assert link.tree(100, 4) == pytest.approx(4 * (1 + 100 / 10))
    assert link.master(100, 4) == pytest.approx(6 * (1 + 100 / 10))


def test_what_so_many_samples_take_lies_between_what_was_measured() -> None:
    assert prediction.time_of(2, [(8, 4.0)]) == 1.0
    # Four to begin with and one for each sample; from 16 on, two.
    known = [(32, 52.0), (8, 12.0), (16, 20.0)]
    assert [prediction.time_of(samples, known) for samples in (4, 8, 10, 16, 20, 32, 40)] == [8, 12, 14, 20, 28, 52, 68]
    # What is faster in small batches is not faster than in none.
    assert prediction.time_of(1, [(16, 8.0), (32, 32.0)]) == 0.5


def test_a_prediction_says_where_more_processes_stop_paying() -> None:
    # One second of computing for all samples together, and messages of a hundredth of one.
    predicted = list(prediction.predict(prediction.Link(0.01, 1e9), [(64, 1.0)], 0.0, batch_size=64))
    assert [row.processes for row in predicted] == [2, 4, 8, 16, 32, 64]
    assert predicted[1].ring_ms == pytest.approx(1e3 * (1 / 4 + 6 * 0.01))
    start = "predicted for batches of 64, each process with a core of its own: adding processes"
    assert prediction.where_it_stops_paying(predicted, False) == f"{start} stops paying at 8: 16 would take 37% longer"
    assert prediction.where_it_stops_paying(predicted, True) == f"{start} stops paying at 16: 32 would gain 9%"
    free = list(prediction.predict(prediction.Link(0.0, 1e9), [(64, 1.0)], 0.0, batch_size=64))
    assert prediction.where_it_stops_paying(free, False) == f"{start} pays up to 64 at least"
