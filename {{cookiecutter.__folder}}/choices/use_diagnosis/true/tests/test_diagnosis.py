"""Diagnosis: what ``check`` finds in broken tasks, what ``timing`` measures, and what ``network`` says of nodes."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import ignite.distributed as idist
import pytest
import torch
from conftest import start
from ignite.engine import Engine
from ignite.metrics import EpochMetric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset, default_collate

from {{ cookiecutter.package_name }}.config import Config, DistributedConfig
from {{ cookiecutter.package_name }}.packs.diagnosis import check, network
from {{ cookiecutter.package_name }}.packs.diagnosis.timing import PARTS
from {{ cookiecutter.package_name }}.runtime import UsageError

BATCH = [torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3]
DATA = {"train": TensorDataset(*BATCH), "val": {"": TensorDataset(*BATCH)}, "collate": default_collate}
SCORE = {"score": "loss", "evaluation_batch_size": 4}


def task_of(
    loss: Any = cross_entropy, forward: Any = lambda model, batch: (model(batch[0]), batch[1]), **others: Any
) -> Any:
    """A classification of three kinds, with mistakes."""
    return SimpleNamespace(
        **{"loss": loss, "forward": forward, "metrics": lambda device: {}, **DATA, **SCORE, **others}
    )


def test_this_task_keeps_its_promises() -> None:
    answer = start(2, "check")
    assert answer.code == 0, answer.output + answer.errors
    assert answer.output.endswith("The task keeps its promises.\n")


NOT_A_MEAN = {"loss": "fix", "gradients": "fix"}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (task_of(), {}),
        (task_of(partial(cross_entropy, reduction="sum")), NOT_A_MEAN),
        (task_of(partial(cross_entropy, weight=torch.tensor([1.0, 2.0, 5.0]))), NOT_A_MEAN),
        (task_of(lambda outputs, _: cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))), NOT_A_MEAN),
        (task_of(partial(cross_entropy, reduction="none")), {"loss": "fix"}),
        (
            task_of(mse_loss, lambda model, batch: (model(batch[0])[:, :1], batch[0][:, 0])),
            {"outputs": "fix", **NOT_A_MEAN},
        ),
        (task_of(mse_loss, lambda model, batch: (model(batch[0])[:7], torch.zeros(7, 3))), {"halves": "note"}),
    ],
    ids=["mean", "sum", "weighted", "contrastive", "not one number", "broadcast", "odd"],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_is_not_a_mean_is_found(task: Any, expected: dict[str, str]) -> None:
    torch.manual_seed(0)
    found = check.check_loss(task, nn.Linear(4, 3), Config(), BATCH)
    assert {name: status for status, name, _ in found if status != "ok"} == expected


class Faulty(nn.Module):
    """A module with much of what ``check`` looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.used(self.dropout(self.norm(inputs)))


def test_what_a_step_does_to_a_model_is_found() -> None:
    def step(engine: Engine, batch: Any) -> dict[str, Tensor]:
        cross_entropy(model(batch[0]), batch[1]).backward()
        return {"each": batch[0].mean(1)}

    model, trainer = Faulty(), Engine(step)
    found = {one.name: one for one in check.check_step(lambda: trainer.run([BATCH]), trainer, model, Config())}
    assert found["step"] == ("fix", "step", "each is not one finite number")
    assert found["weights"].text.startswith("unused.weight (2 in all) got no gradient")
    assert found["buffers"].text.startswith("norm.running_mean (2 in all) changed")
    # Not every device shows that its generator was used.
    assert "random" not in found or found["random"].status == "note"


class Unseeded(list[int]):
    """A dataset with a generator of its own."""

    generator = torch.Generator()

    def __getitem__(self, index: Any) -> Any:
        return torch.rand(2, generator=self.generator)


def test_samples_and_metrics_that_break_promises_are_found() -> None:
    def metrics(compute: Callable[[Any, Any], Any]) -> check.Finding:
        task = task_of(metrics=lambda device: {"each": EpochMetric(compute, check_compute_fn=False)})
        return check.check_metrics(task, nn.Linear(4, 3).to(idist.device()), Config())

    assert check.check_samples(task_of(), Config()).status == "ok"
    assert "differs when it is read again" in check.check_samples(task_of(train=Unseeded(range(8))), Config()).text
    assert metrics(lambda outputs, targets: 0.5).text.endswith("val_each 0.5")
    assert metrics(lambda outputs, targets: outputs.mean(0)).status == "fix"
    assert metrics(lambda outputs, targets: 1 / 0).status == "note"


@pytest.mark.parametrize("processes", [1, 2])
def test_the_parts_of_a_step_are_timed(processes: int) -> None:
    answer = start(processes, "timing", "--steps", "4")
    assert answer.code == 0, answer.errors
    parts = {line.split()[0]: float(line.split()[1]) for line in answer.output.splitlines()[1 : 1 + len(PARTS)]}
    assert list(parts) == list(PARTS)
    assert {part for part, time in parts.items() if time == 0} == ({"communication"} if processes == 1 else set())
    assert "of the peak of large matmuls (MFU)" in answer.output


def test_all_reduces_are_timed() -> None:
    answer = start(2, "all-reduce")
    assert answer.code == 0, answer.errors
    assert re.findall(r"^(\S+ \w+) +[\d.]+ ms over 2 processes", answer.output, re.MULTILINE) == ["1 KiB", "64 MiB"]


def test_nodes_that_connect_and_nodes_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(nnodes: int, serves: list[bool], timeout_s: float) -> list[int]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
        monkeypatch.setattr(network, "is_here", lambda address: serves.pop())
        config = Config(distributed=DistributedConfig(timeout_s=timeout_s))
        with ThreadPoolExecutor() as nodes:
            return [*nodes.map(lambda node: network.network(config, {"nnodes": nnodes}), [*serves])]

    monkeypatch.setattr(network, "own_address", lambda: "127.0.0.1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="MASTER_ADDR is not set"):
        meet(2, [True], 1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert meet(2, [False, True], 20) == [0, 0]
    with pytest.raises(UsageError, match="1 of 2 nodes came within 1 s"):
        meet(2, [True], 1)
    monkeypatch.setattr(network, "reaches", lambda other: False)
    with pytest.raises(UsageError, match=r"cannot reach .* at 127\.0\.0\.1; .*Make host names resolve"):
        meet(2, [False, True], 20)
