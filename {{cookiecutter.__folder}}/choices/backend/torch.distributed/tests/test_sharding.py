"""Weights that no process holds as a whole, and their checkpoints, which are folders."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FOLDERS, Run, call, launch, run, train
from frame import distributed, errors, storage
from torch import nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

ONE = ("--distributed.nproc_per_node", "1")
# So few samples to evaluate that the second rank has none.
FSDP2 = ("--distributed.strategy", "fsdp2", "--optim.schedule", "constant", "--task.val_size", "100")

if "fsdp2" not in distributed.transport.STRATEGIES:
    pytest.skip("this backend has no fsdp2", allow_module_level=True)


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of two processes and two epochs."""
    folder = tmp_path_factory.mktemp("sharded") / "run"
    return train(folder, 2, *FSDP2, "--optim.clip_norm", "0.1", "--train.epochs", "2")


def test_a_weight_without_a_dimension_is_named() -> None:
    model: Any = nn.Linear(1, 1)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(errors.UsageError, match="fsdp2 cannot share out scale, a number without a dimension"):
        import_module("small.sharding").share_out_weights(model, None)


def test_a_weight_that_two_parts_share_is_named() -> None:
    first, second = nn.Linear(600, 600), nn.Linear(600, 600)
    first.weight = second.weight
    model = nn.Sequential(first, nn.Tanh(), second)
    with pytest.raises(errors.UsageError, match=r"would untie 0\.weight and 2\.weight, which are one weight"):
        import_module("small.sharding").share_out_weights(model, None)


def test_an_optimizer_that_shares_its_state_updates_weights_in_any_layout(tmp_path: Path) -> None:
    gradient = torch.randn(8, 3, 3, 3).to(memory_format=torch.channels_last)
    weights, stepped = [], []
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        for share_out in (lambda optimizer: optimizer, import_module("small.sharding").share_out_state):
            torch.manual_seed(0)
            layer = nn.Conv2d(3, 8, 3, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            optimizer: Any = torch.optim.SGD(layer.parameters(), 0.1, fused=True)
            optimizer.register_step_post_hook(lambda *arguments: stepped.append(arguments))
            optimizer.weights = [*layer.parameters()]
            optimizer = share_out(optimizer)
            layer.weight.grad = gradient.clone()
            optimizer.step()
            weights.append(layer.weight)
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(weights[1], weights[0])
    # What was registered before it was shared out counts too, but not what it has of the weights.
    assert len(stepped) == 2
    assert not hasattr(optimizer.optim, "weights")


def test_a_folder_is_as_good_as_its_training_said(sharded: Run, tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", 1, *FSDP2, "--optim.clip_norm", "0.1", "--train.epochs", "2")
    for ours, theirs in zip(alone.records, sharded.records, strict=True):
        assert ours["val_error"] == pytest.approx(theirs["val_error"], rel=1e-3)
    for processes in (1, 2):
        evaluated = json.loads(launch(processes, "evaluate", "--checkpoint", str(sharded.checkpoint())).output)
        assert evaluated["val_error"] == sharded.records[-1]["val_error"]
    best = json.loads(call("evaluate", "--checkpoint", str(sharded.path), *ONE).output)
    assert best["checkpoint"] == str(sharded.path / sharded.summary["best"]["checkpoint"])
    assert call("export", "--checkpoint", str(sharded.path), "--folder", str(tmp_path / "export"), *ONE).code == 0
    exported = torch.load(tmp_path / "export/weights.pt", weights_only=True)
    # As torch's own tool reads the folder.
    for name, weight in sharded.weights().items():
        torch.testing.assert_close(exported[name], weight)


def test_ranks_with_different_numbers_of_batches_evaluate_together(tmp_path: Path) -> None:
    """The hidden layer is gathered by itself, in each batch, also by the rank that has one batch less."""
    settings = ("--task.val_size", "600", "--task.width", "512", "--train.max_iterations", "2")
    both = train(tmp_path / "both", 2, *FSDP2, *settings)
    alone = train(tmp_path / "alone", 1, *FSDP2, *settings)
    assert both.records[-1]["val_error"] == pytest.approx(alone.records[-1]["val_error"], rel=1e-3)


def test_a_damaged_folder_is_put_aside_and_the_one_before_resumes(sharded: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded.path, tmp_path / "run"))
    file = folder / "checkpoints/last_32/__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (folder / "checkpoints/.last_48.part").mkdir()
    longer = train(folder, 2, *FSDP2, "--train.epochs", "3")
    assert "last_32 is damaged (its file __1_0.distcp is not what was written)" in longer.log
    assert longer.summary["resumed_from"].endswith("last_16")
    left = sorted(path.name for path in (folder / "checkpoints").iterdir() if not path.name.startswith("best"))
    assert left == ["last_32", "last_32.damaged", "last_48"]


@pytest.mark.parametrize(("module", "name"), [("posix", "mkdir"), (Metadata.__module__, "os.mkdir")])
def test_nothing_that_somebody_has_put_into_a_folder_is_run(
    module: str, name: str, sharded: Run, tmp_path: Path
) -> None:
    """Neither by its own name nor as a part of a module that torch's has imported."""
    harm = tmp_path / "harm"
    # Since protocol 4, pickle takes parts of what a module has: the global, called with one string.
    program = b"\x80\x04" + f"c{module}\n{name}\n(V{harm}\ntR.".encode()
    folder = Path(shutil.copytree(sharded.path, tmp_path / "run"))
    checkpoint = folder / "checkpoints/last_32"
    (checkpoint / ".metadata").write_bytes(program)
    checksums = json.loads((checkpoint / storage.CHECKSUMS).read_text())
    checksums[".metadata"] = storage.checksum(checkpoint / ".metadata")
    (checkpoint / storage.CHECKSUMS).write_text(json.dumps(checksums))
    refused = call("evaluate", "--checkpoint", str(checkpoint), *ONE)
    assert (refused.code, refused.errors.count("\n")) == (2, 1), refused.errors
    assert re.search(r"last_32 is not a checkpoint of this model \(.*mkdir does not belong into it", refused.errors)
    assert not harm.exists()


def test_an_index_is_read_that_names_a_member_of_an_enumeration_as_some_versions_of_python_do() -> None:
    class Named:
        def __init__(self, owner: type, name: str) -> None:
            self.named = owner, name

        def __reduce__(self) -> tuple[Any, ...]:
            return getattr, self.named

    def read(named: Named) -> object:
        return import_module("small.sharding").Index(io.BytesIO(pickle.dumps(named))).load()

    assert read(Named(_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT")) is _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    with pytest.raises((KeyError, TypeError)):
        read(Named(Metadata, "__init__"))


def test_a_full_disk_leaves_the_older_folders(sharded: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharded.path, tmp_path / "run"))
    before = sorted(folder.glob("checkpoints/*/*"))
    arguments = ["train", "--train.run_dir", str(folder), *FSDP2, "--train.epochs", "3", *distributed.TRIAL]
    # The kernel refuses to let a file grow beyond so many KiB. Python would cut off what it compiles, and read that ever after.
    limits = "export PYTHONDONTWRITEBYTECODE=1; ulimit -f 4; exec"
    limited = ["bash", "-c", f'{limits} "$@"', "limited", *distributed.local_command(2, arguments)]
    full = run(limited, FOLDERS["small"])
    assert full.code == 1
    assert re.search(r"error: \S+/checkpoints/\w+ cannot be written \(.*File too large.*\): make room", full.errors)
    assert sorted(folder.glob("checkpoints/*/*")) == before
    assert train(folder, 2, *FSDP2, "--train.epochs", "3").summary["resumed_from"].endswith("last_32")
