"""Gradients that go up a tree of processes are those that torch's own exchange gives."""

from __future__ import annotations

import gc
import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import settings_here, train
from frame import backend
from torch import Tensor, nn

LIMIT_S = 300


def exchange(rank: int, world_size: int, folder: Path) -> None:
    """Write the sum of a tensor over the ranks, and the mean gradients of a model with a sparse one."""
    place, timeout = f"file://{folder}/store", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size, timeout=timeout)
    mine = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    added, torchs = mine.clone(), mine.clone()
    backend.add_by_tree(added)
    dist.all_reduce(torchs)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(world_size, 4, sparse=True), nn.Linear(4, 1))
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, lambda state, bucket: backend.average_by_tree(state, bucket))
    wrapped(torch.tensor([rank])).sum().backward()
    gradients = [weight.grad.to_dense() for weight in model.parameters() if weight.grad is not None]
    torch.save([added, torchs, *gradients], folder / str(rank))
    # Held by the model alone, the group would wait for its thread, and that for Python's lock, which this thread holds then.
    del wrapped
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def test_what_goes_up_a_tree_is_the_sum_over_all_processes(tmp_path: Path) -> None:
    world_size = 6  # no power of two, so that some have no partner
    # Without "daemon", a process that hangs would outlive a test that fails.
    started = mp.start_processes(exchange, (world_size, tmp_path), world_size, join=False, daemon=True)
    deadline = time.monotonic() + LIMIT_S
    while not started.join(1):
        assert time.monotonic() < deadline, "the processes hang"
    ranks: list[list[Tensor]] = [torch.load(tmp_path / str(rank)) for rank in range(world_size)]
    added, torchs, embedding, *linear = ranks[0]
    torch.testing.assert_close(added, torchs)
    # Each rank has used its own row, and the layer behind it has one bias.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(world_size, 4), nn.Linear(4, 1))
    (model(torch.arange(world_size)).sum() / world_size).backward()
    expected = [weight.grad for weight in model.parameters()]
    torch.testing.assert_close([embedding, *linear], expected)
    for other in ranks[1:]:
        assert all(ours.equal(theirs) for ours, theirs in zip(ranks[0], other, strict=True))


def test_a_sparse_buffer_stays_with_each_rank_and_is_saved(tmp_path: Path) -> None:
    settings = ("--task.edges", "true", "--optim.schedule", "constant", "--train.max_iterations")
    one, two = (train(tmp_path / str(processes), processes, *settings, "8") for processes in (1, 2))
    torch.testing.assert_close(two.weights()["head.weight"], one.weights()["head.weight"])
    assert two.weights()["edges"].layout == torch.sparse_coo
    resumed = train(tmp_path / "2", 2, *settings, "12")
    assert resumed.summary["resumed_from"].endswith("last_8.pt")
    assert resumed.summary["weights_difference"] == 0.0


def test_gradients_of_a_small_model_go_up_a_tree_on_cpus(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, "--train.max_iterations", "12", "--train.profile", "basic")
    here = settings_here().distributed
    about = json.loads((run.path / "profile/profile.json").read_text())
    assert about["by_tree"] == (here.backend == "gloo" and here.device == "cpu")
    # So few gradients would tell nothing of the bandwidth.
    assert [timed["bytes"] for timed in about["all_reduce"]] == [1024, 2**20]
