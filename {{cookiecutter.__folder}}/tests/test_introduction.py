"""What is found out before and after the first step, so that nobody trains for hours on a mistake."""

import math
import random
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ignite.distributed as idist
import numpy as np
import pytest
import torch
from conftest import call, reason_not_to_start, start
from frame import backend, binding, config, distributed, engines, errors, introduction, objective, task_data
from ignite.metrics import EpochMetric, MeanSquaredError
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

ONE = ("--distributed.nproc_per_node", "1")
SETTINGS = import_module("small.task.settings").TaskConfig()


def test_a_loss_that_is_no_mean_shows_even_where_a_model_answers_all_alike() -> None:
    outputs, targets = torch.zeros(64, 3), torch.arange(64) % 3

    def losses(loss: Any) -> tuple[float, float]:
        only: Any = SimpleNamespace(loss=loss)
        return introduction.loss_of_halves((outputs, targets), only)

    whole, mean = losses(cross_entropy)
    assert whole == pytest.approx(mean, rel=1e-5)
    assert whole != pytest.approx(math.log(3), rel=1e-3)
    whole, mean = losses(lambda scores, right: cross_entropy(scores, right, torch.tensor([1.0, 2.0, 5.0])))
    assert whole != pytest.approx(mean, rel=1e-4)

    # What takes probabilities only gets those of the model.
    def of_probabilities(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy(scores, torch.zeros_like(scores))

    assert losses(of_probabilities) == (0.0, 0.0)


def test_what_the_task_requires_is_looked_at_where_it_trains() -> None:
    """A launcher may start the processes on other machines than its own."""
    if reason := reason_not_to_start(2):
        pytest.skip(reason)
    answer = start(2, "train", "--task.requires", "nowhere")
    assert (answer.code != 0, "error: module nowhere: choose another task.requires" in answer.errors) == (True, True)
    assert "failed at" not in answer.errors


@pytest.mark.parametrize(
    "command",
    [
        ["shards"],
        ["scaling", "--simulate"],
        ["scaling", "--preset", "batch-crossover"],
        ["evaluate", "--checkpoint", __file__, "--config", "configs/default.yaml"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_the_task_requires_is_looked_at_by_every_command_that_reads_the_data(command: list[str]) -> None:
    answer = call(*command, "--task.requires", "nowhere", "--distributed.nproc_per_node", "1")
    assert (answer.code, answer.errors) == (1, "error: module nowhere: choose another task.requires\n")


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: outputs[2] * cross_entropy(outputs[0] @ outputs[1].T, torch.arange(len(outputs[0]))),
        lambda outputs, targets: cross_entropy(outputs[1] @ outputs[0].T, targets),
    ],
    ids=["with a scale", "with targets that depend on the batch"],
)
def test_a_loss_that_compares_samples_shows(loss: Any) -> None:
    def forward(model: Any, batch: Any) -> Any:
        return (batch["x"], 2 * batch["x"], torch.tensor(3.0)), torch.arange(len(batch["x"]))

    torch.manual_seed(0)
    contrastive: Any = SimpleNamespace(loss=loss)
    for samples in (8, 7):
        batch = {"x": torch.randn(samples, 4), "text": ["a"] * samples}
        whole, mean = introduction.loss_of_half_batches(partial(forward, None), batch, contrastive)
        assert whole > mean + 0.1
        plain: Any = SimpleNamespace(loss=mse_loss)
        halves = introduction.loss_of_half_batches(lambda batch: (batch["x"], batch["x"] + 1), batch, plain)
        assert halves == pytest.approx((1.0, 1.0))


def test_ranks_with_other_data_are_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    data = task_data.load(SETTINGS)
    others: list[Any] = []
    settings = config.Config()
    monkeypatch.setattr(idist, "get_world_size", lambda: 2)
    monkeypatch.setattr(backend, "all_gather_object", lambda mine: [mine, others[-1](mine)])
    others.append(lambda mine: mine)
    introduction.compare_data(data, settings)
    assert not caplog.messages
    others.append(lambda mine: (mine[0], [*mine[1][1:], 0.0]))
    introduction.compare_data(data, settings)
    assert caplog.messages[0].startswith("rank 1 has other samples than rank 0")
    others.append(lambda mine: ((960, 300), mine[1]))
    sentence = "rank 1 has 960 training and 300 validation samples, rank 0 1024 training and 300 validation"
    with pytest.raises(errors.UsageError, match=sentence):
        introduction.compare_data(data, settings)


def test_what_a_task_returns_by_mistake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changing:
        changing.setattr(import_module("small.training"), "load_data", lambda settings: ("train", "val"))
        refused = call("train", "--train.run_dir", str(tmp_path / "tuple"), *ONE)
    assert (refused.code, refused.errors.count("load in task/data.py returned tuple: return")) == (1, 1), refused.errors
    with monkeypatch.context() as changing:
        stream = SimpleNamespace(train=DataLoader(TensorDataset(torch.zeros(2))), val=[0])
        changing.setattr(import_module("small.training"), "load_data", lambda settings: stream)
        refused = call("train", "--train.run_dir", str(tmp_path / "stream"), *ONE)
        assert (refused.code, refused.errors.count("returned is a DataLoader: return a dataset")) == (1, 1), (
            refused.errors
        )
    mistakes: list[tuple[str, Any, str]] = [
        ("loss", lambda outputs, targets: (outputs - targets) ** 2, "of the shape (64,): let it be their mean"),
        (
            "loss",
            lambda outputs, targets: (outputs - targets).square().mean().item(),
            "loss in task/objective.py returned float",
        ),
        ("loss", lambda outputs, targets: outputs.detach().mean(), "the loss has no gradient"),
        ("forward", lambda model, batch: model(batch["x"]), "forward in task/objective.py returned Tensor"),
        (
            "metrics",
            lambda device: {"error": MeanSquaredError},
            "the metric error of task/objective.py is MeanSquaredError",
        ),
        ("SCORE", "loss", "less is better: set HIGHER_IS_BETTER = False"),
        ("criterion", nn.Linear(1, 1), "criterion of task/objective.py holds weights outside the model"),
        ("scale", nn.Parameter(torch.ones(())), "scale of task/objective.py holds weights outside the model"),
    ]
    monkeypatch.setattr(objective, "HIGHER_IS_BETTER", True)
    for name, mistake, sentence in mistakes:
        with monkeypatch.context() as changing:
            changing.setattr(objective, name, mistake, raising=False)
            refused = call("train", "--train.run_dir", str(tmp_path / "mistaken"), *ONE)
        assert (refused.code, refused.errors.count(sentence)) == (1, 1), refused.errors
        assert "Traceback" not in refused.errors
    with monkeypatch.context() as changing:
        changing.delattr(objective, "SCORE")
        refused = call("train", "--train.run_dir", str(tmp_path / "without"), *ONE)
    assert (refused.code, refused.errors.count("task/objective.py has no SCORE")) == (1, 1), refused.errors


def test_a_metric_that_fails_is_told_of_with_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(objective, "metrics", lambda device: {"error": EpochMetric(fail, check_compute_fn=False)})
    monkeypatch.setattr(objective, "SCORE", "loss")
    told = call("train", "--train.run_dir", str(tmp_path / "run"), "--train.max_iterations", "1", *ONE)
    assert "the metric error cannot be computed of the first batch alone (ZeroDivisionError: noth" in told.errors, (
        told.errors
    )


def test_a_batch_is_cut_between_its_samples_alone() -> None:
    batch = {"x": torch.arange(8).reshape(4, 2), "y": torch.arange(4)}
    assert engines.cut(batch, 1, 2, samples=4)["x"].tolist() == [[2, 3], [6, 7]]
    with pytest.raises(
        errors.UsageError, match=r"cuts a batch between its 2 samples, and a tensor of the shape \(4, 2\)"
    ):
        engines.cut(batch, 0, 2, samples=2)


def test_text_is_cut_with_its_samples() -> None:
    batch = {"x": torch.arange(4), "text": ["a", "b", "c", "d"], "more": [("e", "f", "g", "h"), torch.arange(4)]}
    cut = engines.cut(batch, 1, 2, samples=4)
    assert (cut["text"], cut["more"][0], cut["more"][1].tolist()) == (["b", "d"], ("f", "h"), [1, 3])
    with pytest.raises(errors.UsageError, match=r"between its 4 samples, and a list of 2 texts has another number"):
        engines.cut([["a", "b"]], 0, 2, samples=4)


def test_a_split_that_load_draws_is_the_same_in_every_command() -> None:
    def load(settings: Any) -> list[float]:
        return [random.random(), *np.random.permutation(9), *torch.randperm(9)]

    splits = []
    with patch.object(binding, "load", load):
        for seed in (1, 2):
            torch.manual_seed(seed)
            splits.append(binding.load_data(config.Config()))
    assert splits[0] == splits[1]


class Counting(nn.Module):
    """A module that counts its batches in a buffer, and puts another tensor there."""

    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches = self.batches + 1
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


def test_what_looks_at_a_loss_counts_for_nothing_in_the_model() -> None:
    model = Counting().to(idist.device())
    batch = (torch.randn(8, 4), torch.randn(8, 1))
    seen: list[float] = []

    def forward(model: Any, batch: Any) -> Any:
        outputs = model(batch[0])
        seen.append(float(model.batches))
        return outputs, batch[1]

    table = {objective.SCORE: MeanSquaredError()}
    task: Any = SimpleNamespace(forward=forward, loss=mse_loss, losses=None, metrics=lambda device: table)
    trainer: Any = SimpleNamespace(state=SimpleNamespace(batch=batch))
    introduction.tell_of_loss(trainer, model, config.Config(), task)
    assert (max(seen) >= 3, float(model.batches)) == (True, 0.0)


def test_what_looks_at_a_loss_computes_as_a_step_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, sizes = objective.forward, set()

    def watched(model: nn.Module, batch: Any) -> Any:
        # Some models cannot compute otherwise.
        assert torch.is_autocast_enabled(idist.device().type)
        sizes.add(len(batch["x"]))
        return forward(model, batch)

    monkeypatch.setattr(objective, "forward", watched)
    asked = ("--train.amp", "bf16", "--optim.accumulation_steps", "2", "--train.max_iterations", "1")
    trained = call("train", "--train.run_dir", str(tmp_path / "run"), *asked, *ONE)
    assert trained.code == 0, trained.errors
    assert "cannot be halved" not in trained.errors
    # Micro-batches and their halves; validation batches.
    assert sizes == {32, 16, 256, 44}


def test_what_a_model_draws_for_half_a_batch_is_not_held_against_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, loss = objective.forward, objective.loss

    def noisy(model: nn.Module, batch: Any) -> Any:
        outputs, targets = forward(model, batch)
        return outputs + torch.randn_like(outputs), targets

    monkeypatch.setattr(objective, "forward", noisy)
    told = []
    for name, chosen in (("mean", loss), ("sum", lambda outputs, targets: len(targets) * loss(outputs, targets))):
        monkeypatch.setattr(objective, "loss", chosen)
        trained = call("train", "--train.run_dir", str(tmp_path / name), "--train.max_iterations", "1", *ONE)
        assert trained.code == 0, trained.errors
        told.append("the loss of a batch is" in trained.errors)
    assert told == [not distributed.hardware.SHOWS_DRAWS, True]


def test_a_pretrained_model_learns_in_training_mode(caplog: pytest.LogCaptureFixture) -> None:
    class Kept(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Kept":
            super().train(False)
            return self

    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    model = nn.Sequential(backbone, Kept(4).train())
    with caplog.at_level("INFO", "small"):
        introduction.begin_to_learn(model)
        introduction.begin_to_learn(model)
    assert [part.training for part in model.modules()] == [True] * 5 + [False]
    assert [line.partition(" modules of the model came")[0] for line in caplog.messages] == ["4"]
    with pytest.raises(errors.UsageError, match=r"0\.weight has no shape until the model has run"):
        introduction.begin_to_learn(nn.Sequential(nn.LazyLinear(2)))
