"""What becomes of a training when something around it breaks: one sentence, and nothing is lost."""

import errno
import fcntl
import json
import logging
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import FOLDERS, call, reason_not_to_start, run, train
from frame import (
    background,
    batches,
    checkpoints,
    config,
    copies,
    distributed,
    errors,
    failures,
    handlers,
    objective,
    storage,
)
from torch import nn

ONE = ("--distributed.nproc_per_node", "1")
# Whose course does not depend on its length.
CONSTANT = ("--optim.schedule", "constant", "--optim.warmup", "0 steps")


def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_resumes(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 1, *CONSTANT, "--train.epochs", "3")
    parts = train(tmp_path / "parts", 1, *CONSTANT, "--train.epochs", "2")
    newest = parts.checkpoint()
    content = bytearray(newest.read_bytes())
    weight = parts.weights()["head.weight"].numpy().tobytes()
    content[content.index(weight)] ^= 1
    newest.write_bytes(content)
    refused = call("evaluate", "--checkpoint", str(newest), *ONE)
    assert (refused.code, refused.errors.count("is damaged, or is no checkpoint")) == (2, 1), refused.errors
    parts = train(tmp_path / "parts", 1, *CONSTANT, "--train.epochs", "3")
    assert re.search(
        r"last_32.pt is damaged .*renamed to last_32.pt.damaged: this run resumes from .*last_16.pt", parts.log
    )
    assert parts.summary["resumed_from"].endswith("last_16.pt")
    assert newest.with_name("last_32.pt.damaged").read_bytes() == content
    assert [record["val_loss"] for record in parts.records] == [record["val_loss"] for record in whole.records]
    for name, value in whole.weights().items():
        assert torch.equal(parts.weights()[name], value)


def test_a_second_training_in_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LOCK_LIMIT_S", 0.2)
    trained = train(tmp_path / "run", 1, "--train.epochs", "1")
    before = (trained.path / "config.yaml").read_text()
    file, lacking = storage.lock(trained.path / ".lock")
    assert lacking == ""
    refused = call("train", "--train.run_dir", str(trained.path), "--train.epochs", "2", *ONE)
    assert refused.code == 1
    assert f"is being written by process {os.getpid()} on " in refused.errors
    assert (trained.path / "config.yaml").read_text() == before
    file.close()
    assert train(tmp_path / "run", 1, "--train.epochs", "2").records[-1]["epoch"] == 2


def test_a_file_system_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: object, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    trained = train(tmp_path / "run", 1, "--train.max_iterations", "1")
    assert "cannot be locked (Operation not supported): let no other training write there" in trained.log


def test_a_full_disk_leaves_the_older_checkpoints(tmp_path: Path) -> None:
    trained = train(tmp_path / "run", 1, *CONSTANT, "--train.epochs", "1")
    files = {file.name: file.read_bytes() for file in (trained.path / "checkpoints").iterdir()}
    arguments = ["train", "--train.run_dir", str(trained.path), *CONSTANT, "--train.epochs", "2", *distributed.TRIAL]
    # The kernel refuses to let a file grow beyond so many KiB, which is less than what a best checkpoint takes, too. Python
    # would cut off what it compiles, and read that ever after.
    limits = "export PYTHONDONTWRITEBYTECODE=1; ulimit -f 3; exec"
    limited = ["bash", "-c", f'{limits} "$@"', "limited", *distributed.local_command(1, arguments)]
    full = run(limited, FOLDERS["small"])
    assert full.code == 1
    sentence = (
        r"error: \S+/checkpoints/last_32.pt cannot be written \(File too large\): make room for it there, or .*\n"
    )
    assert re.search(sentence, full.errors), full.errors
    assert "Traceback" not in full.errors
    assert {file.name: file.read_bytes() for file in (trained.path / "checkpoints").iterdir()} == files
    whole = train(tmp_path / "whole", 1, *CONSTANT, "--train.epochs", "2")
    parts = train(tmp_path / "run", 1, *CONSTANT, "--train.epochs", "2")
    assert parts.records[-1]["val_loss"] == whole.records[-1]["val_loss"]


def test_a_checkpoint_that_torch_would_not_read_back_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(model: nn.Module, settings: config.Config) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [*model.parameters()], "table": np.zeros(2)}], 0.1)

    monkeypatch.setattr(objective, "create_optimizer", create, raising=False)
    answer = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert answer.code == 1
    sentence = r"error: \S+/last_16.pt would hold numpy\.\S+, .*, which torch does not read back: let .*\n"
    assert re.search(sentence, answer.errors), answer.errors
    assert "Traceback" not in answer.errors
    assert not storage.saved_checkpoints(tmp_path / "run" / "checkpoints", "last")


def test_copies_use_the_memory_of_the_last_ones() -> None:
    kept = copies.Copies()
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.long)}
    first = copies.on_cpu({**weights, "shared": weights["a"]}, {}, kept.begin())
    assert first["shared"] is first["a"]
    weights["a"].mul_(2)
    assert first["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    second = copies.on_cpu(weights, {}, kept.begin())
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["a"].equal(weights["a"]) and second["b"].equal(weights["b"])
    # What has become of another size.
    third = copies.on_cpu({"a": torch.zeros(4), "b": weights["b"]}, {}, kept.begin())
    assert third["a"].shape == (4,) and third["b"].data_ptr() == second["b"].data_ptr()


def test_a_checkpoint_is_not_overwritten_by_the_next_one_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []
    begun = threading.Event()

    def slow(content: Mapping[str, Any], path: Path, outdated: list[Path]) -> None:
        begun.wait(timeout=0.5)
        written.append(content["weight"].item())

    monkeypatch.setattr(checkpoints, "write", slow)
    beside = background.Background()
    run: Any = SimpleNamespace(checkpoints=tmp_path, writes=True, background=beside, config=config.Config())
    saver = checkpoints.Saver(run)
    for value in (1.0, 2.0, 3.0):
        saver({"weight": torch.tensor(value)}, f"last_{value:.0f}.pt")
    beside.wait()
    assert written == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_are_numbers_unless_one_of_them_is_none(broken: float) -> None:
    weights = [torch.ones(3), torch.full((4,), 3e38), torch.ones(2, dtype=torch.bfloat16), torch.empty(0)]
    assert handlers.are_finite(weights) and handlers.are_finite([])
    weights[2][1] = broken
    assert not handlers.are_finite(weights)


def test_a_checkpoint_is_that_of_its_step_although_it_is_written_during_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*CONSTANT, "--train.evaluate_every", "100 steps", "--train.max_iterations", "200")
    expected = train(tmp_path / "expected", 1, *settings, "--train.async_save", "false")
    write, loss = checkpoints.write, objective.loss
    steps: list[bool] = []
    seen: list[bool] = []
    begun, continued = threading.Event(), threading.Event()

    def slow(content: Mapping[str, Any], path: Path, outdated: list[Path]) -> None:
        if path.name == "best_100.pt":
            begun.set()
            seen.append(continued.wait(timeout=30))
        write(content, path, outdated)

    def counting(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad:
            steps.append(begun.is_set())
        if len(steps) == 101:
            # What writes has the lowest priority, and begins late where other programs keep the machine busy.
            begun.wait(timeout=30)
        if sum(steps) == 3:
            continued.set()
        result: torch.Tensor = loss(outputs, targets)
        return result

    monkeypatch.setattr(checkpoints, "write", slow)
    monkeypatch.setattr(objective, "loss", counting)
    found = train(tmp_path / "found", 1, *settings)
    assert seen == [True]
    for name in ("last_100.pt", "last_200.pt"):
        one, other = (torch.load(run.path / "checkpoints" / name, weights_only=True) for run in (expected, found))
        for part in ("model", "optimizer"):
            assert_equal(one[part], other[part])


def assert_equal(one: Any, other: Any) -> None:
    """Require nested containers to be equal, tensors bit for bit."""
    if isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for name, part in one.items():
            assert_equal(part, other[name])
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_checkpoint_that_cannot_be_written_ends_the_training_at_the_next_log_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(content: Mapping[str, Any], path: Path, outdated: list[Path]) -> None:
        raise storage.unwritable(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    monkeypatch.setattr(checkpoints, "write", failing)
    settings = ("--train.evaluate_every", "1000 steps", "--train.save_every", "500 steps", "--train.epochs", "63")
    ended = call("train", "--train.run_dir", str(tmp_path / "run"), *settings, *ONE)
    assert (ended.code, ended.errors.count("last_500.pt cannot be written (No space left on device)")) == (1, 1)
    steps = [json.loads(line)["iteration"] for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert 500 <= steps[-1] < 1000


def test_a_log_that_cannot_be_written_ends_the_training_too(tmp_path: Path) -> None:
    handler = storage.LogFile(tmp_path / "log.txt")
    handler.stream = open("/dev/full", "w")  # noqa: SIM115 - the handler closes it
    with pytest.raises(errors.UsageError, match=r"log.txt cannot be written \(No space left on device\)"):
        handler.emit(logging.makeLogRecord({"msg": "a line"}))


def test_a_file_takes_the_place_of_another_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_disk(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage.write(tmp_path / "file", "old")
    with monkeypatch.context() as breaking:
        breaking.setattr(os, "fsync", broken_disk)
        with pytest.raises(Exception, match=r"file cannot be written \(Input/output error\): make room"):
            storage.write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_two_processes_that_write_the_same_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storage.replacing(tmp_path / "file") as slow:
        slow.write(b"sl")
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", lambda: 1)
            storage.write(tmp_path / "file", "quick")
        slow.write(b"ow")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "slow")]


def test_a_folder_that_is_removed_ends_the_training_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = objective.loss

    def removing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        result: torch.Tensor = loss(outputs, targets)
        return result

    monkeypatch.setattr(objective, "loss", removing)
    ended = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert (ended.code, ended.errors.count("cannot be written (No such file or directory)")) == (1, 1), ended.errors
    assert "Traceback" not in ended.errors


def test_a_loss_whose_gradients_never_are_numbers_does_not_end_well_in_fp16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "fp16" not in distributed.hardware.AMP:
        pytest.skip("this hardware has no fp16")
    loss = objective.loss

    def without_gradients(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A root has no slope at 0.
        result: torch.Tensor = loss(outputs, targets) + (outputs - outputs.detach()).square().sum().sqrt()
        return result

    monkeypatch.setattr(objective, "loss", without_gradients)
    settings = ("--train.amp", "fp16", "--train.epochs", "3")
    ended = call("train", "--train.run_dir", str(tmp_path / "run"), *settings, *ONE)
    said = "the gradients of many steps in a row are not numbers after step 32: lower optim.lr"
    assert (ended.code, ended.errors.count(said)) == (1, 1), ended.errors


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2 GiB."), r"is out of memory \(it asked for 2 GiB more\): raise"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "is out of memory: raise optim."),
        (RuntimeError("RESOURCE_EXHAUSTED: Attempting to reserve 2G"), "is out of memory: raise optim."),
        # What torch says where it cannot clip; the second is of somebody's own matrices.
        (
            NotImplementedError("Could not run 'aten::norm' with arguments from the 'SparseCPU' backend."),
            "has sparse gradients",
        ),
        (RuntimeError("`_fused_sgd` does not support sparse gradients"), "has sparse gradients"),
        (
            NotImplementedError("Could not run 'aten::norm' with arguments from the 'SparseCsrCPU' backend."),
            "failed at step 1:",
        ),
        # Of the task itself: nobody is gone.
        (ConnectionResetError("Connection reset by peer"), "failed at step 1:\nTraceback"),
        (RuntimeError("Timed out waiting for the server"), "failed at step 1:\nTraceback"),
        # It has not finished the training, whatever the code.
        (SystemExit(0), "failed at step 1:\nTraceback"),
    ],
)
def test_the_cause_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, sentence: str
) -> None:
    def failing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(objective, "loss", failing)
    ended = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert ended.code == 1
    assert re.search(rf"^\[rank 0\] {sentence}", ended.errors, re.MULTILINE), ended.errors
    assert "another process" not in ended.errors


def test_an_error_of_the_data_names_the_step_that_waits_for_them(
    tmp_path: Path, every_sample: Callable[[Callable[[int], None]], None]
) -> None:
    *_, third = islice(batches.TrainingBatches(1024, 64, rank=0, world_size=1, seed=0), 3)

    def refuse(index: int) -> None:
        if index == third.indices[5]:
            raise ValueError("no such file")

    every_sample(refuse)
    ended = call("train", "--train.run_dir", str(tmp_path / "run"), *ONE)
    assert ended.code == 1
    assert "[rank 0] failed at step 3:\nTraceback" in ended.errors


def test_what_ends_a_training_from_another_thread_is_told_with_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    told = threading.Thread(target=failures.tell, args=(TimeoutError(), 0, "timed out", str))
    trainer, meter = SimpleNamespace(state=SimpleNamespace(iteration=7)), SimpleNamespace(waits_for_data=True)
    with failures.told_with_step(trainer, cast("Any", meter)):
        told.start()
        told.join()
    failures.tell(TimeoutError(), 0, "timed out", str)
    assert capsys.readouterr().err.splitlines() == [
        "[rank 0] ends at step 8, as another process does not answer: timed out",
        "[rank 0] ends, as another process does not answer: timed out",
    ]


def test_an_error_of_a_loader_process_is_summed_up_by_what_it_was() -> None:
    error = RuntimeError("no such file\nnor folder")
    assert failures.in_one_line(error) == "RuntimeError: no such file"
    note = ""
    if hasattr(error, "add_note"):
        error.add_note("in Letters[3]")
        note = " (in Letters[3])"
    assert failures.in_one_line(error) == f"RuntimeError: no such file{note}"
    # As torch hands it on.
    try:
        raise error
    except RuntimeError:
        caught = import_module("torch._utils").ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(RuntimeError, match="Caught RuntimeError in DataLoader worker") as raised:
        caught.reraise()
    assert failures.in_one_line(raised.value) == f"RuntimeError: no such file{note}"


def test_a_loader_process_that_is_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_KILLS_WORKER", "1")
    arguments = ["train", "--train.run_dir", str(tmp_path / "run"), "--data.num_workers", "1", *distributed.TRIAL]
    ended = run(distributed.local_command(1, arguments), FOLDERS["small"])
    assert ended.code == 1
    assert re.search(
        r"^\[rank 0\] has lost its loader process \d+, which ended or was killed: ", ended.errors, re.MULTILINE
    )
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize("processes", [1, 2])
def test_a_sample_that_cannot_be_read_is_named_by_the_process_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    if reason := reason_not_to_start(processes):
        pytest.skip(reason)
    # Rank 0 does not read it, if there is another rank.
    order = batches.TrainingBatches(1024, 64, rank=processes - 1, world_size=processes, seed=0)
    monkeypatch.setenv("SMALL_LACKS_SAMPLE", str(next(iter(order)).indices[-1]))
    arguments = ["train", "--train.run_dir", str(tmp_path / "run"), "--data.num_workers", "1", *distributed.TRIAL]
    ended = run(distributed.local_command(processes, arguments), FOLDERS["small"])
    assert ended.code == 1
    # Some launchers write the rank before each line.
    told = re.findall(r"^(?:\[\d\]<stderr>:)?(error: .*)", ended.errors, re.MULTILINE)
    assert [re.sub(r"\d+", "N", line) for line in told] == ["error: sample N is damaged: fix it"], ended.errors
    assert "Caught" not in ended.errors


def test_the_best_checkpoint_stays_the_best_without_its_record(tmp_path: Path) -> None:
    # Better than a model that gives one answer to all, which is what so large a rate makes of it.
    run = train(tmp_path / "run", 1, *CONSTANT, "--train.epochs", "6")
    (best,) = (run.path / "checkpoints").glob("best_*.pt")
    run = train(run.path, 1, *CONSTANT, "--train.epochs", "7", "--optim.lr", "30")
    (run.path / "metrics.jsonl").write_text("")
    run = train(run.path, 1, *CONSTANT, "--train.epochs", "8", "--optim.lr", "30")
    assert best.exists()
    assert run.summary["best"]["checkpoint"] == f"checkpoints/{best.name}"
    assert "metrics.jsonl has 0 of the 7 evaluations" in run.log
    assert f"metrics.jsonl lacks the evaluation of the best checkpoint, checkpoints/{best.name}" in run.log


def test_damaged_records_do_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 1, *CONSTANT, "--train.epochs", "3")
    parts = train(tmp_path / "parts", 1, *CONSTANT, "--train.epochs", "2")
    broken = {"config.yaml": "- 1", "summary.json": "", "metrics.jsonl": "{", "steps.jsonl": "\x00\x01"}
    for name, content in broken.items():
        (parts.path / name).write_text(content)
    parts = train(tmp_path / "parts", 1, *CONSTANT, "--train.epochs", "3")
    assert parts.summary["val_loss"] == whole.summary["val_loss"]
    # That of the checkpoint is made up for.
    assert [(record["epoch"], record["val_loss"]) for record in parts.records] == [
        (record["epoch"], record["val_loss"]) for record in whole.records[1:]
    ]
    assert "config.yaml is damaged" in parts.log
    assert "metrics.jsonl has 0 of the 2 evaluations" in parts.log
    for name, value in whole.weights().items():
        assert torch.equal(parts.weights()[name], value)


def test_a_checkpoint_without_its_settings_is_not_measured_with_others(tmp_path: Path) -> None:
    trained = train(tmp_path / "run", 1, "--train.max_iterations", "1")
    settings = (trained.path / "config.yaml").rename(tmp_path / "settings.yaml")
    refused = call("evaluate", "--checkpoint", str(trained.path), *ONE)
    assert (refused.code, refused.errors.count("config.yaml, which says how")) == (2, 1), refused.errors
    resumed = train(trained.path, 1, "--train.max_iterations", "2")
    assert "config.yaml is gone: it is written again with these settings" in resumed.log
    trained = train(tmp_path / "other", 1, "--train.max_iterations", "1")
    measured = call("evaluate", "--checkpoint", str(trained.path), "--config", str(settings), *ONE)
    assert json.loads(measured.output)["val_loss"] == trained.summary["val_loss"]


def test_a_best_checkpoint_that_is_lost_is_told_of(tmp_path: Path) -> None:
    # The first evaluation is the best.
    worse = ("--optim.lr", "1", "--optim.name", "sgd", *CONSTANT, "--train.evaluate_every", "1 steps")
    first = train(tmp_path / "run", 1, *worse, "--train.max_iterations", "2")
    best = first.path / first.summary["best"]["checkpoint"]
    best.write_bytes(best.read_bytes()[:-1])
    more = train(tmp_path / "run", 1, *worse, "--train.max_iterations", "3")
    assert re.search(r"best_\d.pt is damaged .*: the best one is lost", more.log)
    # Worse ones are not the best.
    assert more.summary["best"]["checkpoint"] is None


def test_a_transform_that_loader_processes_cannot_find_is_named(tmp_path: Path) -> None:
    def transform() -> None:
        """Nothing that another process could find."""

    # Each Python has another error for this.
    with pytest.raises(Exception) as error:
        ForkingPickler.dumps(transform)
    told = failures.explain(error.value)
    assert re.search(r"cannot hand .*transform.* over to loader processes, .*num_workers 0$", told), told


def test_what_is_asked_of_a_wrapped_model_is_named() -> None:
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(AttributeError) as error:
        _ = wrapped.encode
    assert failures.explain(error.value).startswith("asks for encode of the model, which is wrapped where several")
