"""Which rank gets which samples when, and how they become batches."""

import multiprocessing
import os
import sys
import time
import tracemalloc
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FOLDERS, run
from frame import batches, checks, early_signals, errors, randomness, task_data

EVALUATION_BATCH_SIZE = batches.EVALUATION_BATCH_SIZE


def global_steps(size: int, batch_size: int, world_size: int, epoch: int) -> list[list[int]]:
    ranks = [batches.TrainingBatches(size, batch_size, rank, world_size, seed=3) for rank in range(world_size)]
    for rank in ranks:
        rank.start_at(epoch * len(rank))
    return [[index for share in shares for index in share.indices] for shares in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_each_step_holds_the_same_samples_on_every_world_size(world_size: int) -> None:
    assert global_steps(100, 16, world_size, epoch=2) == global_steps(100, 16, 1, epoch=2)


def test_an_epoch_repeats_no_sample_and_leaves_out_less_than_a_batch() -> None:
    seen = np.concatenate(global_steps(100, 16, 4, epoch=0))
    assert len(set(seen)) == len(seen) == 96


def test_every_epoch_has_another_order() -> None:
    assert global_steps(100, 16, 2, epoch=0) != global_steps(100, 16, 2, epoch=1)


def test_a_pass_begins_in_mid_epoch_where_it_is_told() -> None:
    steps = batches.TrainingBatches(100, 16, 0, 1, seed=0)
    steps.start_at(len(steps))
    whole = list(steps)
    steps.start_at(len(steps) + 4)
    assert list(steps) == whole[4:]


@pytest.mark.parametrize(("batch_size", "choices"), [(10, "8 or 12"), (3, "choose 4")])
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(batch_size: int, choices: str) -> None:
    with pytest.raises(errors.UsageError, match=choices):
        batches.TrainingBatches(100, batch_size, 0, 4, seed=0)


def test_a_batch_fits_every_number_of_processes_that_can_occur() -> None:
    assert checks.batch_check(48, [2, 4, 6, 8]).ok
    with pytest.raises(errors.UsageError, match="64 is not divisible by 2, 4, 6 and 8 processes: choose 48 or 72"):
        checks.require([checks.batch_check(64, [2, 4, 6, 8])])


def test_a_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="at most 100"):
        batches.TrainingBatches(100, 128, 0, 2, seed=0)


@pytest.mark.parametrize("size", [1, EVALUATION_BATCH_SIZE, 3 * EVALUATION_BATCH_SIZE + 7])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_evaluation_reads_every_sample_once_in_batches_that_do_not_depend_on_the_world(
    size: int, world_size: int
) -> None:
    ranks = [batches.EvaluationBatches(size, rank, world_size) for rank in range(world_size)]
    seen = sorted(share.indices for rank in ranks for share in rank)
    assert seen == [share.indices for share in batches.EvaluationBatches(size, 0, 1)]
    assert [index for batch in seen for index in batch] == list(range(size))
    assert {rank.reach_every_rank for rank in ranks} == {all(len(rank) for rank in ranks)}


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="the training set is empty"):
        batches.TrainingBatches(0, 4, rank=0, world_size=1, seed=0)
    with pytest.raises(errors.UsageError, match="the validation set is empty"):
        batches.EvaluationBatches(0, 0, 1)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 1000, 2**16 + 1])
def test_the_order_of_an_epoch_holds_every_sample_once(size: int) -> None:
    order = batches.samples_at(np.arange(size), size, 3, 5)
    assert np.array_equal(np.sort(order), np.arange(size))
    some = np.array([size - 1, 0, size // 2])
    assert np.array_equal(batches.samples_at(some, size, 3, 5), order[some])


def test_the_order_of_few_samples_is_that_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few, all are permuted at once."""
    places = np.arange(50)
    at_once = [batches.samples_at(places, size, 3, 5) for size in (50, 1437, 5000)]
    monkeypatch.setattr(batches, "BLOCK", 0)
    one_by_one = [batches.samples_at(places, size, 3, 5) for size in (50, 1437, 5000)]
    assert np.array_equal(at_once, one_by_one)


def test_the_order_of_an_epoch_is_a_fair_shuffle() -> None:
    size, epochs = 50, 1000
    orders = np.stack([batches.samples_at(np.arange(size), size, 0, epoch) for epoch in range(epochs)])
    assert len({order.tobytes() for order in orders}) == epochs
    # How often each sample comes at each place, and after each other sample: chi-square with 1 % to be further off.
    places, neighbours = np.zeros((size, size)), np.zeros((size, size))
    for order in orders:
        places[np.arange(size), order] += 1
        neighbours[order[:-1], order[1:]] += 1
    for counts in (places.ravel(), neighbours[~np.eye(size, dtype=bool)]):
        mean, freedom = counts.mean(), len(counts) - 1
        assert ((counts - mean) ** 2 / mean).sum() < freedom + 2.33 * (2 * freedom) ** 0.5


def test_a_billion_samples_take_no_memory() -> None:
    tracemalloc.start()
    steps = batches.TrainingBatches(10**12, 2**20, 3, 2**14, seed=0)
    steps.start_at(5 * len(steps) + 10)
    share = next(iter(steps))
    assert (share.epoch, len(share.indices)) == (5, 64)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def read(dataset: Any, num_workers: int = 0, rank: int = 1, world_size: int = 2, epoch: int = 0) -> list[Any]:
    steps = batches.TrainingBatches(len(dataset), 4, rank, world_size, seed=0)
    steps.start_at(epoch * len(steps))
    loader = batches.create_loader(dataset, steps, num_workers)
    with batches.closing(loader):
        return list(loader)


@pytest.mark.parametrize("form", [task_data.Points, task_data.ListedPoints, task_data.SeededPoints])
def test_the_random_numbers_of_a_sample_depend_on_seed_epoch_and_index_alone(form: Any) -> None:
    def inputs(num_workers: int, world_size: int, part: bool = False, epoch: int = 0) -> dict[float, list[float]]:
        dataset = form(12, 0, noise=0.5)
        dataset = torch.utils.data.Subset(dataset, range(12)) if part else dataset
        ranks = [read(dataset, num_workers, rank, world_size, epoch) for rank in range(world_size)]
        return {
            float(y): x.tolist()
            for rank in ranks
            for batch in rank
            for x, y in zip(batch["x"], batch["y"], strict=True)
        }

    alone = inputs(0, 1)
    assert len(alone) == 12
    for world_size, part in ((2, False), (4, False), (2, True)):
        assert inputs(0, world_size, part) == alone
    if form is task_data.Points:
        assert inputs(2, 1) == alone
    assert not set(map(tuple, alone.values())) & set(map(tuple, inputs(0, 1, epoch=1).values()))
    plain = form(12, 0)
    changes = {round(x[0] - float(plain.x[plain.y == y][0, 0]), 6) for y, x in alone.items()}
    assert len(changes) == 12


def test_a_generator_that_is_seeded_by_torch_gives_each_sample_numbers_of_its_own() -> None:
    class Noise(torch.utils.data.Dataset[float]):
        def __getitem__(self, index: int) -> float:
            return float(np.random.default_rng([torch.initial_seed(), index]).random())

    def read(seed: int, epoch: int, *indices: int) -> list[float]:
        reader = batches.Reader(Noise(), seed)
        found: list[float] = reader.__getitems__(batches.Share(epoch, [*indices])).tolist()
        assert reader.__getitems__(batches.Share(epoch, [*indices])).tolist() == found
        return found

    first, second = read(0, 0, 3, 5)
    assert read(0, 0, 5) == [second]
    assert len({first, *read(0, 1, 3), *read(1, 0, 3)}) == 3
    assert torch.initial_seed() == torch.default_generator.initial_seed()


def test_a_dataset_that_asks_for_it_is_told_the_epoch() -> None:
    class Curriculum(list[int]):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    told: list[int] = []
    reader = batches.Reader(Curriculum([7, 8]), 0)
    for epoch in (0, 0, -1, 1, 0):
        reader.__getitems__(batches.Share(epoch, [0, 1]))
    assert told == [0, 1, 0]


def test_normal_numbers_follow_from_their_seeds() -> None:
    seeds = torch.from_numpy(randomness.sample_seeds(0, 0, list(range(4000))))
    numbers = randomness.normal(seeds, 8)
    assert (numbers.shape, numbers.dtype) == ((4000, 8), torch.float32)
    assert torch.equal(randomness.normal(seeds[[7]], 8)[0], numbers[7])
    # Five standard errors of 32,000 numbers, and of the correlations between 4,000 rows.
    assert abs(float(numbers.mean())) < 0.03
    assert abs(float(numbers.std()) - 1) < 0.02
    assert float((numbers.abs() > 2).float().mean()) == pytest.approx(0.0455, abs=0.006)
    assert float((torch.corrcoef(numbers.T) - torch.eye(8)).abs().max()) < 0.08


def test_random_numbers_for_a_whole_batch_are_refused() -> None:
    class Noisy(task_data.WholePoints):  # type: ignore[misc, name-defined]
        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": torch.randn(len(indices), 3)}

    with pytest.raises(errors.UsageError, match=r"Noisy.*let it take \(indices, seeds\)"):
        read(Noisy(12, seed=0))


@pytest.mark.parametrize("other", [torch.zeros(4), [None]], ids=["another size", "nothing in it"])
def test_samples_of_unequal_sizes_are_refused_with_the_way_to_join_them(other: Any) -> None:
    samples = [torch.zeros(3), torch.zeros(3), other, other] * 3
    with pytest.raises(errors.UsageError, match=r"write a function collate in task/data.py"):
        read(samples)


def test_a_sample_that_is_none_is_refused_whatever_joins_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def collate(samples: list[Any]) -> Any:
        return [one for one in samples if one is not None]

    monkeypatch.setattr(task_data, "collate", collate, raising=False)
    with pytest.raises(errors.SampleError, match=r"list answers None for a sample.* leave such samples out"):
        batches.Reader([1.0, None], 0).__getitems__(batches.Share(0, [0, 1]))


class Dropping(task_data.WholePoints):  # type: ignore[misc, name-defined]
    def __getitems__(self, indices: list[int]) -> Any:
        return super().__getitems__([index for index in indices if index % 3])


def test_a_batch_that_lacks_samples_is_refused_whoever_has_left_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "has 1 of its 2 samples, .* leave samples out in load of task/data.py, not in collate"
    with pytest.raises(errors.SampleError, match=rf"a batch of Dropping {told}"):
        read(Dropping(12, seed=0))

    def collate(samples: list[Any]) -> Any:
        return torch.utils.data.default_collate([sample for sample in samples if sample["y"] > 0])

    monkeypatch.setattr(task_data, "collate", collate, raising=False)
    with pytest.raises(errors.SampleError, match=rf"a batch of Points {told}"):
        read(task_data.Points(12, seed=0))


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(4, 9), torch.zeros(4)),
        [torch.zeros(8, 3), torch.zeros(8)],
        {"words": torch.zeros(3, 4), "following": torch.zeros(3, 4)},
        {"words": torch.zeros(3, 4), "lengths": torch.zeros(4)},
        ([torch.zeros(3, 5, 6), torch.zeros(3, 7, 8)] * 2, torch.tensor(1.0)),
        ["a", "b"],
    ],
    ids=["whole", "two views", "words first", "words first, and lengths", "many sizes", "no tensors"],
)
def test_a_batch_in_which_all_samples_may_be_is_taken(batch: Any) -> None:
    batches.refuse_fewer(batch, 4, "any")


def test_what_the_task_draws_for_a_batch_differs_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_data, "collate", lambda samples: float(torch.rand(())), raising=False)
    drawn = read(task_data.Points(12, seed=0))
    assert len(set(drawn)) == 3
    assert read(task_data.Points(12, seed=0)) == drawn


@pytest.mark.parametrize("rank", [0, 1])
def test_no_loader_process_is_left_behind_even_by_a_rank_without_a_batch(rank: int) -> None:
    before = set(multiprocessing.active_children())
    shares = batches.EvaluationBatches(3, rank, world_size=2)
    loader = batches.create_loader(task_data.Points(3, seed=0), shares, num_workers=1)
    with batches.closing(loader):
        assert len(list(loader)) == 1 - rank
        assert len(set(multiprocessing.active_children()) - before) == 1
    assert set(multiprocessing.active_children()) == before


class SignalledAsItBegins:
    """Sends stop signals to a loader process before that has asked how to behave."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: Any) -> None:
        usual = torch.set_num_threads

        def signalled(nthreads: int) -> None:
            for stop in early_signals.STOP_SIGNALS:
                os.kill(os.getpid(), stop)
            usual(nthreads)

        # Torch calls it when it has set its own handlers, and before worker_init_fn.
        torch.set_num_threads = signalled

    def __reduce__(self) -> Any:
        return SignalledAsItBegins, (), True


class Tidy:
    """Leaves a file when its loader process ends in order; each sample takes so many seconds."""

    def __init__(self, file: Path, seconds: float) -> None:
        self.file, self.seconds = file, seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        util.Finalize(None, self.file.touch, exitpriority=0)
        time.sleep(self.seconds)
        return index


@pytest.mark.parametrize(("seconds", "in_order"), [(0, True), (300, False)])
def test_loader_processes_end_in_order_or_by_force_but_soon(seconds: float, in_order: bool, tmp_path: Path) -> None:
    file = tmp_path / "ended"
    loader = batches.create_loader(Tidy(file, seconds), batches.TrainingBatches(4, 4, 0, 1, seed=0), num_workers=1)
    started = time.monotonic()
    with batches.closing(loader):
        iterator = iter(loader)
        if in_order:
            next(iterator)
    # Mostly to begin one.
    assert time.monotonic() - started < 120
    assert file.exists() == in_order


UNCLOSED = """
from {package} import batches
loader = batches.create_loader(range(4), batches.TrainingBatches(4, 4, 0, 1, seed=0), num_workers=1)
print(next(iter(loader)).sum())
"""


def test_a_loader_process_that_nobody_closes_does_not_keep_python_from_ending() -> None:
    answer = run([sys.executable, "-c", UNCLOSED.format(package="small")], FOLDERS["small"])
    assert (answer.code, answer.output) == (0, "tensor(6)\n"), answer.errors


def test_a_loader_process_lives_on_after_a_stop_signal_while_it_begins() -> None:
    assert [part.tolist() for part in read(SignalledAsItBegins(), num_workers=1)] == [
        part.tolist() for part in read(list(range(10)))
    ]


@pytest.mark.parametrize(
    ("form", "num_workers"),
    [(task_data.Points, 0), (task_data.ListedPoints, 0), (task_data.WholePoints, 0), (task_data.WholePoints, 2)],
)
def test_a_dataset_may_answer_with_a_sample_or_a_list_of_samples_or_a_batch(form: Any, num_workers: int) -> None:
    dataset = form(10, seed=0)
    order = batches.samples_at(np.arange(10), 10, 0, 0)
    read_batches = read(dataset, num_workers)
    assert len(read_batches) == 2
    for step, batch in enumerate(read_batches):
        chosen = order[4 * step + 2 : 4 * step + 4]
        torch.testing.assert_close(batch, {"x": dataset.x[chosen], "y": dataset.y[chosen]}, rtol=0, atol=0)


def test_a_part_of_a_dataset_serves_too() -> None:
    dataset = task_data.WholePoints(20, seed=0)
    part = torch.utils.data.Subset(dataset, range(10, 20))
    for batch in read(part):
        assert set(batch["y"].tolist()) < set(dataset.y[10:].tolist())


def test_the_task_may_make_its_own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_data, "collate", lambda samples: [sample["y"] for sample in samples], raising=False)
    dataset = task_data.Points(10, seed=0)
    order = batches.samples_at(np.arange(10), 10, 0, 0)
    assert read(dataset)[0] == [dataset.y[order[2]], dataset.y[order[3]]]
    # What is a batch already is left alone.
    assert set(read(task_data.WholePoints(10, seed=0))[0]) == {"x", "y"}
