"""What is measured: the same numbers on any number of processes, whatever the metric, and a model left as it was."""

import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, call, launch, train
from frame import NO_DATA, backend, binding, config, errors, evaluation, export, objective, task_model
from ignite.metrics import MeanAbsoluteError, MetricsLambda
from ignite.metrics.regression.median_absolute_error import MedianAbsoluteError
from torch import nn

ONE = ("--distributed.nproc_per_node", "1")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short training in one process."""
    return train(tmp_path_factory.mktemp("evaluation") / "run", 1, "--train.epochs", "2")


def test_a_checkpoint_is_as_good_as_its_training_said(trained: Run) -> None:
    metrics = json.loads(call("evaluate", "--checkpoint", str(trained.checkpoint()), *ONE).output)
    assert {key: metrics[key] for key in ("val_loss", "val_error")} == {
        key: trained.records[-1][key] for key in ("val_loss", "val_error")
    }
    # The folder of a run stands for its best checkpoint.
    best = json.loads(call("evaluate", "--checkpoint", str(trained.path), *ONE).output)
    assert best["checkpoint"] == str(trained.path / trained.summary["best"]["checkpoint"])
    assert best["val_error"] == trained.summary["best"]["val_error"]


def test_only_metrics_that_keep_samples_are_computed_from_those_of_all_ranks() -> None:
    def double(value: float) -> float:
        return 2 * value

    mean, median = MeanAbsoluteError(), MedianAbsoluteError()
    for metric, keeps in ((mean, False), (mean * 2, False), (median, True), (MetricsLambda(double, median), True)):
        metric.reset()
        assert evaluation.needs_all_samples(metric) == keeps, metric
    assert evaluation.needs_all_samples(MetricsLambda(double, MetricsLambda(double, value=median)))


def test_an_export_is_read_by_torch_alone_and_answers_as_the_model(trained: Run, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    answer = call("export", "--checkpoint", str(trained.checkpoint()), "--folder", str(folder))
    assert answer.code == 0, answer.errors
    assert json.loads(answer.output)["difference"] < 1e-6
    weights = torch.load(folder / "weights.pt", weights_only=True)
    assert all(torch.equal(weight, trained.weights()[name]) for name, weight in weights.items())
    about = json.loads((folder / "model.json").read_text())
    assert (about["data"], about["task"]["width"]) == ({"title": "points"}, 16)
    # Another batch, in a process that knows nothing of this package.
    code = "import sys, torch; model = torch.export.load(sys.argv[1]).module(); print(model(torch.ones(7, 3)).tolist())"
    told = subprocess.run(
        [sys.executable, "-I", "-c", code, str(folder / "model.pt2")], check=True, capture_output=True, text=True
    ).stdout
    model = task_model.create_model(config.Config().task, None).eval()
    model.load_state_dict(weights)
    assert json.loads(told) == pytest.approx(model(torch.ones(7, 3)).tolist(), rel=1e-5)


def test_predictions_may_be_arrays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def predict(model: Any, data: Any, inputs: list[str]) -> Any:
        yield {"scores": np.array([1, np.inf]), "best": torch.tensor(1), "mean": np.float32(0.5), "odd": [math.nan]}

    monkeypatch.setattr(export, "load_model", lambda config, checkpoint: (None, None))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(predict=predict))
    assert export.prediction(config.Config(), "best_1.pt", []) == 0
    # No word of JSON for what is not a number.
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"scores": [1.0, None], "best": 1, "mean": 0.5, "odd": [None]}


def test_an_export_is_compared_with_the_model_in_every_number() -> None:
    def difference(*pairs: tuple[list[float], list[float]]) -> float:
        ours, theirs = ([torch.tensor(pair[side]) for pair in pairs] for side in (0, 1))
        return export.relative_difference(ours, theirs)

    assert difference() == difference(([], [])) == difference(([1.0, -math.inf], [1.0, -math.inf])) == 0.0
    assert difference(([1.0], [1.0]), ([3.0, -math.inf], [4.0, -math.inf]), ([5.0], [5.0])) == 0.25
    assert difference(([math.inf], [0.0])) == math.inf
    for other in (1.0, math.nan):
        assert math.isnan(difference(([1.0], [1.0]), ([math.nan], [other]), ([5.0], [5.0])))


def test_a_model_that_cannot_be_traced_leaves_its_weights(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, 0] if float(rows.sum()) > 0 else rows[:, 1]

    monkeypatch.setattr(task_model.Network, "forward", forward)
    answer = call("export", "--checkpoint", str(trained.checkpoint()), "--folder", str(tmp_path))
    assert (answer.code, answer.errors.count("weights.pt is written, use that")) == (1, 1), answer.errors
    assert torch.load(tmp_path / "weights.pt", weights_only=True).keys() == trained.weights().keys()


def test_a_model_that_draws_is_exported_but_not_with_numbers_drawn_once(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = task_model.Network.forward
    draws: list[Any] = [torch.randn, lambda count: torch.tensor(np.random.randn(count), dtype=torch.float32)]
    codes = []
    for draw in draws:
        monkeypatch.setattr(task_model.Network, "forward", lambda self, rows: plain(self, rows) + draw(len(rows)))  # noqa: B023
        answer = call("export", "--checkpoint", str(trained.checkpoint()), "--folder", str(tmp_path))
        codes.append((answer.code, answer.errors.count("answers otherwise than the model")))
    assert codes == [(0, 0), (1, 1)]


def test_a_model_that_reads_text_is_not_traced_with_one_text(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = task_model.Network.forward

    def forward(self: nn.Module, rows: torch.Tensor, texts: list[str]) -> Any:
        return plain(self, rows)

    def read(model: nn.Module, batch: Any) -> Any:
        return model(batch["x"], ["one"] * len(batch["x"])), batch["y"]

    monkeypatch.setattr(task_model.Network, "forward", forward)
    monkeypatch.setattr(objective, "forward", read)
    answer = call("export", "--checkpoint", str(trained.checkpoint()), "--folder", str(tmp_path))
    assert (answer.code, "its inputs hold text, such as 'one'" in answer.errors) == (1, True), answer.errors


@pytest.mark.parametrize(
    ("processes", "val_size", "metrics"),
    [
        pytest.param(2, 300, "precision median double", id="samples are kept, more on one rank than on the other"),
        pytest.param(3, 20, "precision", id="two ranks have no batch"),
    ],
)
def test_metrics_are_the_same_for_any_number_of_processes(
    trained: Run, monkeypatch: pytest.MonkeyPatch, processes: int, val_size: int, metrics: str
) -> None:
    monkeypatch.setenv("SMALL_METRICS", metrics)
    arguments = ("evaluate", "--checkpoint", str(trained.checkpoint()), "--task.val_size", str(val_size))
    one, many = call(*arguments, *ONE), launch(processes, *arguments)
    expected = json.loads(one.output)
    assert expected.keys() == {"checkpoint", "val_loss", "val_error", *(f"val_{name}" for name in metrics.split())}
    # Some launchers write the rank before what a process prints.
    assert json.loads(many.output[many.output.index("{") :]) == expected


@pytest.mark.parametrize(
    ("metrics", "needs"), [("", False), ("precision", False), ("median", True), ("double", True), ("own", True)]
)
def test_a_metric_that_needs_all_samples_is_known(metrics: str, needs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_METRICS", metrics)
    metrics_of_task = evaluation.create_metrics(binding.bind(None, NO_DATA))
    assert any(map(evaluation.needs_all_samples, metrics_of_task.values())) == needs


def test_a_metric_with_the_name_of_the_loss_is_refused() -> None:
    task: Any = SimpleNamespace(metrics=lambda device: {"loss": MeanAbsoluteError(device=device), "error": None})
    with pytest.raises(errors.UsageError, match="is named loss, as what is minimized: give it another name"):
        evaluation.create_metrics(task)


def test_metrics_of_batches_from_many_ranks_are_in_the_order_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[Any] = []

    def remember(value: Any) -> list[Any]:
        values.append(value)
        return values

    monkeypatch.setattr(backend, "all_gather_object", remember)
    for numbers in ([0, 3], [1, 4], [2], []):
        pairs = evaluation.gather([(torch.tensor(number), torch.tensor(number)) for number in numbers])
    assert [int(outputs) for outputs, _ in pairs] == [0, 1, 2, 3, 4]


def test_what_is_no_tensor_in_outputs_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, loss = objective.forward, objective.loss

    def with_more(model: nn.Module, batch: Any) -> Any:
        outputs, targets = forward(model, batch)
        return {"all": [outputs, None, "text", (3, outputs)]}, targets

    monkeypatch.setattr(objective, "forward", with_more)
    monkeypatch.setattr(objective, "loss", lambda outputs, targets: loss(outputs["all"][0], targets))
    monkeypatch.setattr(objective, "metrics", lambda device: {})
    monkeypatch.setattr(objective, "SCORE", "loss")
    run_dir = ("--train.run_dir", str(tmp_path / "run"))
    # What is computed in another type is turned back.
    trained = call("train", *run_dir, "--train.max_iterations", "1", "--train.amp", "bf16", *ONE)
    assert trained.code == 0, trained.errors
    monkeypatch.setattr(backend, "all_gather_object", lambda value: [value])
    outputs = {"all": [torch.ones(2), None, "text", (3, torch.zeros(1))]}
    assert repr(evaluation.gather([(outputs, None)])) == repr([(outputs, None)])


def test_metrics_that_ask_torch_find_one_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # As torchmetrics does before it adds up over the processes.
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with evaluation.as_one_process():
        assert not torch.distributed.is_initialized()
    assert torch.distributed.is_initialized()


def test_evaluation_leaves_every_module_in_its_mode() -> None:
    frozen = nn.Dropout().eval()
    model = nn.ModuleDict({"frozen": frozen, "other": nn.Dropout()})
    modes = [module.training for module in model.modules()]
    with evaluation.evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes == [True, False, True]


def test_a_module_that_does_more_than_change_its_mode_is_left_as_it_was() -> None:
    class Merging(nn.Linear):
        """As adapters of low rank do: they learn in training mode, and are a part of the weight in evaluation mode."""

        merged = False

        def train(self, mode: bool = True) -> "Merging":
            if self.merged == mode:
                # Much larger than the weight, which is rounded.
                self.weight.data += -1e4 if mode else 1e4
            self.merged = not mode
            return super().train(mode)

    layer = Merging(2, 2)
    before = layer.weight.detach().clone()
    with evaluation.evaluating(nn.Sequential(layer)):
        assert layer.merged
        assert layer.weight.mean() > 9e3
    assert not layer.merged
    assert torch.equal(layer.weight, before)


def test_a_score_that_is_not_measured_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "SCORE", "speed")
    refused = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert refused.code == 1
    assert "error: SCORE speed of objective.py is not one of its metrics: choose one of loss, error" in refused.errors


def test_the_loss_may_be_the_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "SCORE", "loss")
    run = train(tmp_path / "run", 1, "--train.epochs", "2")
    assert (run.path / "checkpoints" / "best_32.pt").exists()


def test_a_score_that_is_no_number_names_no_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_METRICS", "nothing")
    monkeypatch.setattr(objective, "SCORE", "nothing")
    run = train(tmp_path / "run", 1, "--train.epochs", "1")
    assert run.summary["best"]["checkpoint"] is None
    assert not list((run.path / "checkpoints").glob("best_*"))
    assert "warning: val_nothing: not a number, so that this evaluation cannot be the best" in run.log
    assert "there is no best checkpoint" in run.log
    refused = call("evaluate", "--checkpoint", str(run.path), *ONE)
    assert (refused.code, refused.errors.count("\n")) == (2, 1)
    assert "holds no checkpoints/best_*, which only an evaluation with a score that is a number" in refused.errors
    # What is no number is null in JSON.
    evaluated = json.loads(call("evaluate", "--checkpoint", str(run.checkpoint()), *ONE).output)
    assert evaluated["val_nothing"] is None


def test_a_metric_of_several_numbers_is_refused(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_METRICS", "each")
    refused = call("evaluate", "--checkpoint", str(trained.checkpoint()), *ONE)
    assert refused.code == 1
    assert "the metric each is not one number" in refused.errors
    assert refused.errors.count("\n") == 1
    # A training refuses it after its first step, not after an epoch.
    refused = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert refused.code == 1
    assert "error: the metric each is not one number" in refused.errors
    assert (tmp_path / "run/metrics.jsonl").exists() is False


def test_small_numbers_keep_their_digits() -> None:
    values: list[Any] = [1.23456789e-8, torch.tensor(0.5), 3]
    assert [evaluation.one_number("any", value) for value in values] == [1.23457e-8, 0.5, 3.0]


def test_many_numbers_are_refused_in_one_line() -> None:
    said = r"the metric any is not one number but tensor\(\[\[0\., 0\.\], \[0\..{,70}: average it in objective\.py"
    with pytest.raises(errors.UsageError) as refused:
        evaluation.one_number("any", torch.zeros(50, 2))
    assert re.fullmatch(said, str(refused.value))
