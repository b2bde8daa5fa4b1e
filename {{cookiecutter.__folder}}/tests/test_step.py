"""A step of your own learns the same on any number of processes, and resumes: those of own_steps.py."""

from __future__ import annotations

import pytest
from conftest import SHORT, Run, assert_close_weights, assert_equal, train

# L-BFGS amplifies rounding.
TOLERANCES = {"LBFGS": 0.05}
NAMES = ["SharpnessAware", "LBFGS", "Teacher", "GradientPenalty", "SeveralTerms"]
SETTINGS = [*SHORT, "--train.evaluate_every=12 steps", "--optim.schedule=constant"]
Runs = dict[str, Run]


def train_own_steps(folder: pytest.TempPathFactory, processes: int) -> Runs:
    run = train(folder.mktemp("steps"), processes, *SETTINGS, program=("tests/own_steps.py",))
    return {f"{name}/{kind}": Run(run.path / name / kind, run.log) for name in NAMES for kind in ("whole", "resumed")}


@pytest.fixture(scope="session")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of one process with each step, in one go and resumed."""
    return train_own_steps(tmp_path_factory, 1)


@pytest.fixture(scope="session")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same in two processes."""
    return train_own_steps(tmp_path_factory, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_learns(of_one: Runs, name: str) -> None:
    losses = [record["train_loss"] for record in of_one[f"{name}/whole"].records]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_what_one_learns(of_one: Runs, of_two: Runs, name: str) -> None:
    one, two = of_one[f"{name}/whole"], of_two[f"{name}/whole"]
    assert two.summary["world_size"] == 2
    tolerance = TOLERANCES.get(name, 5e-4)
    timed = {"samples_per_second", "data_wait", "device_memory_mib"}
    for mine, theirs in zip(one.steps, two.steps, strict=True):
        assert {key: mine[key] for key in mine.keys() - timed} == pytest.approx(
            {key: theirs[key] for key in theirs.keys() - timed}, rel=tolerance, abs=1e-5
        )
    assert_close_weights(one, two, tolerance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runs", ["of_one", "of_two"])
def test_a_step_resumes(runs: str, name: str, request: pytest.FixtureRequest) -> None:
    found: Runs = request.getfixturevalue(runs)
    whole, resumed = found[f"{name}/whole"], found[f"{name}/resumed"]
    assert resumed.summary["resumed_from"].endswith("last_12.pt")
    assert_equal(resumed.saved(), whole.saved())


def test_every_term_is_logged(of_one: Runs) -> None:
    for one in of_one["SeveralTerms/whole"].steps:
        assert one["loss"] == pytest.approx(one["fit"] + 0.001 * one["size"], rel=1e-4)
    assert all(one["disagreement"] >= 0 for one in of_one["Teacher/whole"].steps)


def test_what_a_step_owns_is_in_the_checkpoint(of_one: Runs) -> None:
    saved = of_one["Teacher/whole"].saved()
    assert saved["step"]["teacher"].keys() == saved["model"].keys()
