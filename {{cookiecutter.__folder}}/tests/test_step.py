"""A step of your own learns the same on any number of processes, and resumes: those of own_steps.py."""

from __future__ import annotations

import pytest
from conftest import SHORT, Run, assert_equal, assert_same_steps, train
from own_steps import STEPS, TERMS

NAMES = [step.__name__ for step in STEPS]
SETTINGS = [*SHORT, "--train.evaluate_every=6 steps", "--optim.schedule=constant"]
Runs = dict[str, Run]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Runs]:
    """Runs of one and of two processes with each step, in one go and resumed."""
    found = {}
    for processes in (1, 2):
        run = train(tmp_path_factory.mktemp("steps"), processes, *SETTINGS, program=("tests/each_step.py",))
        kinds = [f"{name}/{kind}" for name in NAMES for kind in ("whole", "resumed")]
        found[processes] = {kind: Run(run.path / kind, run.log) for kind in kinds}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_step_learns(runs: dict[int, Runs], name: str) -> None:
    losses = [record["train_loss"] for record in runs[1][f"{name}/whole"].records]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_what_one_learns(runs: dict[int, Runs], name: str) -> None:
    one, two = (runs[processes][f"{name}/whole"] for processes in (1, 2))
    assert two.summary["world_size"] == 2
    assert_same_steps(one, two)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_resumes(runs: dict[int, Runs], processes: int, name: str) -> None:
    whole, resumed = (runs[processes][f"{name}/{kind}"] for kind in ("whole", "resumed"))
    assert resumed.summary["resumed_from"].endswith("last_5.pt")
    assert_equal(resumed.saved(), whole.saved())


@pytest.mark.parametrize("name", TERMS)
def test_every_term_is_logged(runs: dict[int, Runs], name: str) -> None:
    for one in runs[1][f"{name}/whole"].steps:
        assert one["loss"] == pytest.approx(sum(one[term] * weight for term, weight in TERMS[name].items()), rel=1e-4)
