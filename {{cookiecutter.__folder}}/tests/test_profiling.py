"""Where the time goes: the parts of a step, and what is said of them."""

import csv
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ignite.distributed as idist
import pytest
import torch
from conftest import train
from frame import config, distributed, profiling, utilization
from torch import nn

SHORT = ("--train.max_iterations", "24", "--train.evaluate_every", "12 steps")


def parts_of(run: Path) -> dict[str, dict[str, float]]:
    with (run / "profile" / "parts.csv").open() as file:
        return {row.pop("part"): {name: float(row[name]) for name in row} for row in csv.DictReader(file)}


@pytest.mark.parametrize("profile", ["handlers", "basic", "torch"])
def test_a_profile_shows_where_the_time_goes_and_changes_nothing(tmp_path: Path, profile: str) -> None:
    plain = train(tmp_path / "plain", 1, *SHORT)
    run = train(tmp_path / "run", 1, *SHORT, "--train.profile", profile)
    assert not (plain.path / "profile").exists()
    for name, weight in plain.weights().items():
        assert weight.equal(run.weights()[name])
    parts = parts_of(run.path)
    assert list(parts) == list(profiling.PARTS)
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert all((part["milliseconds"] > 0) == (name != "exchange") for name, part in parts.items())
    assert (run.path / "profile/parts.png").stat().st_size > 1000
    assert "milliseconds of each step, the first 5 aside" in run.log
    # Layers of 3 x 16, 16 x 16 and 16 x 1 numbers, for 64 samples: a product and a sum for each, in three passes.
    about = json.loads((run.path / "profile/profile.json").read_text())
    assert about["gflop_per_step"] * 1e9 == pytest.approx(3 * 2 * 64 * (3 * 16 + 16 * 16 + 16))
    assert 0 < about["gflop_per_s"] < about["gflop_per_s_of_large_products"]
    assert ("the trace itself takes time" in run.log) == (profile == "torch")
    if profile == "torch":
        with gzip.open(run.path / "profile/trace_0.json.gz") as trace:
            names = {event.get("name") for event in json.load(trace)["traceEvents"]}
        assert any("backward" in str(name).lower() for name in names)
    else:
        with (run.path / "profile" / f"{profile}.csv").open() as file:
            _, *rows = csv.reader(file)
        measured = {tuple(row[:2]): [float(number) for number in row[2:] if number] for row in rows}
        if profile == "handlers":
            total, least, most, mean, _ = measured["Processing", "None"]
            assert any(handler.endswith("after_step") for handler, _ in measured)
        else:
            total, least, most, mean = (
                measured["processing_stats", name][0] for name in ("total", "min", "max", "mean")
            )
            assert ("ITERATION_COMPLETED", "total") in measured
        assert 0 < least <= mean <= most < total


def test_a_model_that_gives_a_parameter_to_a_module_is_counted() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.question, self.layer = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            answers: torch.Tensor = self.layer(self.question[None].expand(len(inputs), -1, -1))
            return answers + self.layer(self.question)  # type: ignore[no-any-return]

    objective: Any = SimpleNamespace(losses=None, forward=lambda model, batch: (model(batch), None))
    flops = utilization.step_flops(Asking().to(idist.device()), config.Config(), objective, torch.randn(3, 8))
    # Products and sums of 8 numbers each for two outputs, of four questions, for three samples and once more; in three passes.
    assert flops == 3 * 2 * 8 * 2 * 4 * (3 + 1)


def test_a_model_that_cannot_be_counted_is_profiled_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def forward(model: nn.Module, batch: torch.Tensor) -> Any:
        raise RuntimeError("no rule for this operator")

    objective: Any = SimpleNamespace(losses=None, forward=forward)
    assert utilization.step_flops(nn.Linear(1, 1), config.Config(), objective, torch.zeros(1)) == 0
    assert "counter does not take this model: RuntimeError: no rule for this operator" in caplog.text


def test_a_profile_of_two_processes_has_what_they_exchange(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, *SHORT, "--task.width", "2048", "--train.profile", "basic")
    parts = parts_of(run.path)
    exchange = parts["exchange"]
    # An all-reduce of all gradients by itself.
    about = json.loads((run.path / "profile/profile.json").read_text())
    assert [timed["bytes"] for timed in about["all_reduce"]] == [1024, about["gradient_bytes"]]
    assert all(timed["milliseconds"] > 0 for timed in about["all_reduce"])
    assert 0 < exchange["milliseconds"] <= exchange["slowest_milliseconds"]
    # So many weights, each with two more numbers, take the optimizer milliseconds, whoever waits for their gradients.
    assert parts["optimizer"]["milliseconds"] > 1


def test_a_dataset_that_holds_the_training_back_is_named(
    tmp_path: Path, every_sample: Callable[[Callable[[int], None]], None]
) -> None:
    every_sample(lambda index: time.sleep(0.0005))
    run = train(tmp_path / "run", 1, "--train.max_iterations", "12", "--train.profile", "handlers")
    assert "data takes" in run.log and "of the time: raise data.num_workers" in run.log


@pytest.mark.parametrize(
    ("milliseconds", "slowest", "said"),
    [
        ({"forward": 3, "backward": 5}, {}, "the model itself takes 100% of the time: try train.compile true, or more"),
        ({"forward": 3, "backward": 5, "exchange": 8}, {}, "exchange takes 50% of the time: raise data.batch_size"),
        ({"forward": 3, "evaluation": 1}, {}, "evaluation takes 25% of the time: evaluate less often"),
        ({"forward": 3, "backward": 5, "exchange": 8}, {"backward": 9}, "rank 1 computes slower than the others"),
        ({"forward": 3, "backward": 5, "exchange": 1}, {"forward": 9}, "the model itself takes 89% of the time"),
        ({"forward": 3, "backward": 5, "evaluation": 1}, {"backward": 5.6}, "rank 1 computes slower than the others"),
        ({"forward": 3, "backward": 5, "evaluation": 8}, {"backward": 8}, "evaluation takes 50% of the time"),
    ],
)
def test_the_verdict_names_the_largest_part_or_the_slowest_rank(
    monkeypatch: pytest.MonkeyPatch, milliseconds: dict[str, float], slowest: dict[str, float], said: str
) -> None:
    monkeypatch.setattr(idist, "get_world_size", lambda: 2)
    monkeypatch.setattr(idist, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(distributed.hardware, "COMPILES", True)
    whole = sum(milliseconds.values())
    values = {part: milliseconds.get(part, 0.0) for part in profiling.PARTS}
    shares = [
        profiling.Share(part, value, value / whole, 1, slowest.get(part, value)) for part, value in values.items()
    ]
    assert profiling.verdict(shares, config.Config()).startswith(said)
