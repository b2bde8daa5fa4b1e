"""Strategies: sharded runs learn what one process learns, and resume from each other's checkpoints."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PACKAGE, SHORT, Run, start, train
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.testing import assert_close

backend = import_module(f"{PACKAGE}.runtime.process.backend")
strategies: Any = import_module(f"{PACKAGE}.packs.strategies")

SUPPORTED = list(strategies.SUPPORTED[backend.ON_CPU])
# Its step calls parts of the model, which fsdp2 cannot gather, and requires gradients of each.
IS_GAN = hasattr(import_module(f"{PACKAGE}.task.objective"), "generator_loss")
SUPPORTED = [name for name in SUPPORTED if name != "fsdp2" or not IS_GAN]
SHARDED = [name for name in ("zero1", "fsdp2") if name in SUPPORTED]
PAIRS = [("zero1", "ddp"), ("zero1", "fsdp2"), ("fsdp2", "ddp"), ("fsdp2", "zero1"), ("fsdp2", "fsdp2")]
CLIPPED = [*SHORT, "--optim.clip_norm=0.5", "--optim.schedule=constant"]
needs_fsdp2 = pytest.mark.skipif("fsdp2" not in SUPPORTED, reason="neither this backend nor this task has fsdp2")


def learned(run: Run) -> list[dict[str, Any]]:
    """Return the evaluations without their speed."""
    return [{name: value for name, value in one.items() if name != "samples_per_second"} for one in run.records]


def weights(run: Run, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the newest checkpoint, as torch itself reads a file or a folder."""
    newest = max((run.path / "checkpoints").glob("last_*"), key=lambda path: int(path.stem.split("_")[1]))
    if newest.is_dir():
        dcp_to_torch_save(newest, tmp_path / "weights.pt")
        newest = tmp_path / "weights.pt"
    found: dict[str, torch.Tensor] = torch.load(newest, weights_only=newest.parent != tmp_path)["model"]
    return found


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one process."""
    return train(tmp_path_factory.mktemp("clipped") / "run", 1, *CLIPPED)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of two processes, to step 16."""
    folder = tmp_path_factory.mktemp("sharded")
    settings = [*CLIPPED, "--train.max_iterations=16"]
    return {name: train(folder / name, 2, *settings, f"--distributed.strategy={name}") for name in SHARDED}


@pytest.mark.parametrize(("saved_by", "strategy"), [pair for pair in PAIRS if {*pair} <= {*SUPPORTED}])
def test_a_resumed_run_learns_what_one_process_learns(
    saved_by: str, strategy: str, sharded: dict[str, Run], clipped: Run, tmp_path: Path
) -> None:
    shutil.copytree(sharded[saved_by].path, tmp_path / "run")
    run = train(tmp_path / "run", 2, *CLIPPED, f"--distributed.strategy={strategy}")
    assert run.summary["resumed_from"].endswith("last_16" if saved_by == "fsdp2" else "last_16.pt")
    for mine, alone in zip(learned(run), learned(clipped), strict=True):
        assert mine == pytest.approx(alone, rel=1e-3, abs=1e-4)
    for name, weight in weights(run, tmp_path).items():
        assert_close(weight, clipped.weights()[name], rtol=1e-2, atol=1e-3)


@needs_fsdp2
def test_a_folder_is_evaluated_and_a_damaged_one_is_not_used(sharded: dict[str, Run], tmp_path: Path) -> None:
    run = sharded["fsdp2"]
    for processes in (1, 2):
        answer = start(processes, "evaluate", "--checkpoint", str(run.path / "checkpoints/last_16"))
        assert f'"val_loss": {run.records[-1]["val_loss"]}' in answer.output, answer.errors
    shutil.copytree(run.path, tmp_path / "run")
    file = tmp_path / "run/checkpoints/last_16/__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    resumed = train(tmp_path / "run", 2, *CLIPPED, "--distributed.strategy=fsdp2", "--train.max_iterations=16")
    assert "last_16 is damaged (__1_0.distcp is corrupt), renamed to last_16.damaged" in resumed.log
    assert resumed.summary["resumed_from"].endswith("last_12")
    assert learned(resumed)[-1] == learned(run)[-1]


@needs_fsdp2
def test_parts_are_blocks_and_keep_tied_weights_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fsdp2: Any = import_module(f"{PACKAGE}.packs.strategies.fsdp2")
    monkeypatch.setattr(fsdp2, "LEAST_NUMEL", 64)
    tied, *blocks = nn.Embedding(9, 8), *(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2))
    output = nn.Linear(8, 9, bias=False)
    output.weight = tied.weight
    model = nn.Sequential(tied, *blocks, output)
    assert {*fsdp2.parts_of(model)} == {*blocks}
    monkeypatch.setattr(fsdp2, "MOST_NUMEL", 100)
    parts = fsdp2.parts_of(model)
    assert {*parts} == {*blocks, *blocks[0], *blocks[1]}
    assert all(parts.index(block) > parts.index(layer) for block in blocks for layer in block)


@pytest.mark.skipif("local-sgd" not in SUPPORTED, reason="this backend has no local-sgd")
def test_local_sgd_learns(tmp_path: Path) -> None:
    settings = ["--distributed.strategy=local-sgd", "--optim.ema_decay=0.9", "--optim.schedule=constant"]
    run = train(tmp_path / "run", 2, *SHORT, *settings)
    losses = [record["val_loss"] for record in run.records]
    assert losses[-1] < losses[0]
    assert run.summary["weights_difference"] == 0.0
    shutil.copytree(run.path, tmp_path / "resumed")
    for path in (tmp_path / "resumed/checkpoints").glob("*_24.pt"):
        path.unlink()
    # The last save but one was after an average too.
    assert learned(train(tmp_path / "resumed", 2, *SHORT, *settings)) == learned(run)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["fsdp2", "--train.amp=fp16"], "fsdp2 does not work with train.amp fp16. Use bf16"),
        (["fsdp2", "--optim.ema_decay=0.9"], "fsdp2 does not work with optim.ema_decay 0.9. Set it to null"),
        (["zero3"], "zero3"),
        (["local-sgd", "--distributed.average_every=0"], "distributed.average_every must be at least 1"),
    ],
)
def test_unsuitable_settings_are_rejected(settings: list[str], expected: str, tmp_path: Path) -> None:
    strategy, *others = settings
    answer = start(2, "train", "--train.run_dir", str(tmp_path / "run"), f"--distributed.strategy={strategy}", *others)
    assert answer.code != 0
    lines = [line for line in answer.errors.splitlines() if line.startswith("error: ")]
    assert any(expected in line or "does not work with the backend" in line for line in lines), answer.errors
    assert not (tmp_path / "run").exists()


def test_a_strategy_needs_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, config = import_module(f"{PACKAGE}.runtime"), import_module(f"{PACKAGE}.config")
    settings = strategies.StrategiesConfig(backend="horovod", strategy="zero1")
    with pytest.raises(runtime.UsageError, match="zero1 does not work with the backend horovod"):
        strategies.configure(config.Config(distributed=settings))


THAW = """
import sys
import {package}.task.model as task
from {package}.__main__ import main

create_model = task.create_model


def create_frozen(*arguments, **options):
    model = create_model(*arguments, **options)
    name, weight = next(model.named_parameters())
    layer, steps = model.get_submodule(name.rpartition(".")[0]), []
    weight.requires_grad_(False)

    def thaw(layer, inputs):
        steps.append(1)
        next(layer.parameters()).requires_grad_(len(steps) > 3)

    layer.register_forward_pre_hook(thaw)
    return model


task.create_model = create_frozen
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize("strategy", ["ddp", *SHARDED])
def test_weights_that_are_thawed_during_a_run_are_named(strategy: str, tmp_path: Path) -> None:
    if IS_GAN or "zero1" not in SUPPORTED:
        pytest.skip("weights are not frozen, or thawed ones are averaged too")
    (tmp_path / "thaw.py").write_text(THAW.format(package=PACKAGE))
    arguments = ["train", "--train.run_dir", str(tmp_path / "run"), *SHORT, f"--distributed.strategy={strategy}"]
    answer = start(2, *arguments, program=(str(tmp_path / "thaw.py"),))
    assert answer.code == 1
    assert "changed after the model was distributed" in answer.errors
    assert "error: requires_grad of " in answer.errors
