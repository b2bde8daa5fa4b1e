"""Which rank gets which samples when."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from {{ cookiecutter.package_name }}.checks import check_batch_size
from {{ cookiecutter.package_name }}.config import DataConfig, UsageError
from {{ cookiecutter.package_name }}.data import (
    EVALUATION_BATCH_SIZE,
    EvaluationBatches,
    ImageDataset,
    TrainingBatches,
    create_datasets,
)


def global_steps(size: int, batch_size: int, world_size: int, epoch: int) -> list[list[int]]:
    ranks = [TrainingBatches(size, batch_size, rank, world_size, seed=3) for rank in range(world_size)]
    for batches in ranks:
        batches.start_at(epoch * len(batches))
    return [np.concatenate(shares).tolist() for shares in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_each_step_holds_the_same_samples_on_every_world_size(world_size: int) -> None:
    assert global_steps(100, 16, world_size, epoch=2) == global_steps(100, 16, 1, epoch=2)


def test_an_epoch_repeats_no_sample_and_leaves_out_less_than_a_batch() -> None:
    seen = np.concatenate(global_steps(100, 16, 4, epoch=0))
    assert len(set(seen)) == len(seen) == 96


def test_every_epoch_has_another_order() -> None:
    assert global_steps(100, 16, 2, epoch=0) != global_steps(100, 16, 2, epoch=1)


def test_a_pass_begins_in_mid_epoch_where_it_is_told() -> None:
    batches = TrainingBatches(100, 16, 0, 1, seed=0)
    batches.start_at(len(batches))
    whole = [batch.tolist() for batch in batches]
    batches.start_at(len(batches) + 4)
    assert [batch.tolist() for batch in batches] == whole[4:]


@pytest.mark.parametrize(("batch_size", "choices"), [(10, "8 or 12"), (3, "choose 4")])
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(batch_size: int, choices: str) -> None:
    with pytest.raises(UsageError, match=choices):
        TrainingBatches(100, batch_size, 0, 4, seed=0)


def test_a_batch_fits_every_number_of_processes_that_can_occur() -> None:
    check_batch_size(48, [2, 4, 6, 8])
    with pytest.raises(UsageError, match="64 is not divisible by 2, 4, 6 and 8 processes: choose 48 or 72"):
        check_batch_size(64, [2, 4, 6, 8])


def test_a_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(UsageError, match="at most 100"):
        TrainingBatches(100, 128, 0, 2, seed=0)


@pytest.mark.parametrize("size", [1, EVALUATION_BATCH_SIZE, 3 * EVALUATION_BATCH_SIZE + 7])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_evaluation_reads_every_sample_once_in_batches_that_do_not_depend_on_the_world(
    size: int, world_size: int
) -> None:
    batches = [batch for rank in range(world_size) for batch in EvaluationBatches(size, rank, world_size)]
    seen = sorted(batch.tolist() for batch in batches if len(batch))
    assert seen == [batch.tolist() for batch in EvaluationBatches(size, 0, 1)]
    assert [index for batch in seen for index in batch] == list(range(size))


def test_an_empty_batch_has_the_shape_of_a_batch() -> None:
    train_set, _ = create_datasets(DataConfig())
    images, labels = train_set.__getitems__(np.arange(0))
    assert images.shape == (0, *train_set.shape)
    assert labels.shape == (0,)


def test_the_digits_of_scikit_learn_are_cut_without_overlap() -> None:
    train_set, val_set = create_datasets(DataConfig())
    assert (len(train_set), len(val_set)) == (1437, 360)
    train, val = ({read(part, index) for index in range(len(part))} for part in (train_set, val_set))
    assert not train & val
    digits = load_digits()
    pairs = zip(digits.images.astype(np.float32), digits.target, strict=True)
    assert train | val == {((image / 8 - 1).tobytes(), int(label)) for image, label in pairs}


def read(dataset: ImageDataset, index: int) -> tuple[bytes, int]:
    images, labels = dataset.__getitems__(np.array([index]))
    return images.numpy().tobytes(), int(labels)
