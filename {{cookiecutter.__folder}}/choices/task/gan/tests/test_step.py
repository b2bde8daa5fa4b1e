"""A step of your own learns the same on any number of processes, and resumes: those of own_steps.py."""

from __future__ import annotations

import pytest
from conftest import SHORT, Run, assert_equal, train
from torch.testing import assert_close

NAMES = ["GradientPenalty", "ManyUpdates"]
SETTINGS = [*SHORT, "--train.evaluate_every=6 steps"]
Runs = dict[str, Run]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Runs]:
    """Runs of one and of two processes with each step, in one go and resumed."""
    found = {}
    for processes in (1, 2):
        run = train(tmp_path_factory.mktemp("steps"), processes, *SETTINGS, program=("tests/own_steps.py",))
        kinds = [f"{name}/{kind}" for name in NAMES for kind in ("whole", "resumed")]
        found[processes] = {kind: Run(run.path / kind, run.log) for kind in kinds}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_what_one_learns(runs: dict[int, Runs], name: str) -> None:
    one, two = (runs[processes][f"{name}/whole"] for processes in (1, 2))
    assert two.summary["world_size"] == 2
    timed = {"samples_per_second", "data_wait", "device_memory_mib"}
    for mine, theirs in zip(one.steps, two.steps, strict=True):
        assert {"loss", "loss_discriminator", "loss_generator"} < mine.keys()
        assert {key: mine[key] for key in mine.keys() - timed} == pytest.approx(
            {key: theirs[key] for key in theirs.keys() - timed}, rel=1e-4, abs=1e-5
        )
    assert_close(one.weights(), two.weights(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_resumes(runs: dict[int, Runs], processes: int, name: str) -> None:
    whole, resumed = (runs[processes][f"{name}/{kind}"] for kind in ("whole", "resumed"))
    assert resumed.summary["resumed_from"].endswith("last_6.pt")
    assert_equal(resumed.saved(), whole.saved())


def test_what_a_step_owns_is_in_the_checkpoint(runs: dict[int, Runs]) -> None:
    saved = runs[1]["ManyUpdates/whole"].saved()["step"]
    assert saved["updates"] == 12
    assert {"discriminator", "generator"} < saved.keys()
