"""Settings: where they come from, which are refused, and the schedules that follow from them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import PROJECT, Run, call, execute

from {{ cookiecutter.package_name }}.__main__ import COMMANDS, main
from {{ cookiecutter.package_name }}.config import Config, OptimConfig, steps_of
from {{ cookiecutter.package_name }}.optim import create_scheduler, plan_of, restore
from {{ cookiecutter.package_name }}.runtime import Command
from {{ cookiecutter.package_name }}.runtime.settings import parse


def settings(*arguments: str) -> Config:
    """Return the settings of a command line."""
    config: Config = parse(Config, Command("", ""), [*arguments])[0]
    return config


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("data.batch_size", "0"),
        ("data.batch_size", "many"),
        ("data.batchsize", "64"),
        ("optim.lr", "-1"),
        ("optim.lr", "nan"),
        ("optim.name", "adam"),
        ("optim.warmup", "5"),
        ("train.evaluate_every", "0 steps"),
        ("train.epochs", "null"),
        ("train.amp", "fp64"),
        ("distributed.backend", "smoke"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(setting: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"--{setting}", value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert setting in error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fly"], "unknown command fly"),
        (["train", "--config", "missing.yaml"], "missing.yaml"),
        (["evaluate"], "checkpoint"),
        (["evaluate", "--checkpoint", "missing.pt"], "missing.pt"),
        (
            ["train", "--data.batch_size=63", "--distributed.nproc_per_node=2"],
            "data.batch_size 63 is not divisible by 2",
        ),
    ],
)
def test_bad_usage_is_refused_in_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert reason in error


def test_an_option_precedes_a_file_and_a_file_precedes_the_default_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train: {seed: 3, epochs: 7}\ndata: {num_workers: 1}\n")
    config = settings("--config", str(file), "--train.epochs", "9")
    assert (config.train.epochs, config.train.seed, config.data.num_workers) == (9, 3, 1)
    assert config.optim.lr == yaml.safe_load((PROJECT / "configs/default.yaml").read_text())["optim"]["lr"]
    file.write_text("train: {sed: 3}\n")
    answer = call("train", "--config", str(file))
    assert answer.code == 2
    assert "sed" in answer.errors


def test_the_default_file_lists_every_setting() -> None:
    default = yaml.safe_load((PROJECT / "configs/default.yaml").read_text())
    config = settings()
    for section in fields(Config):
        values = getattr(config, section.name)
        assert default[section.name].keys() == {field.name for field in fields(type(values))}


def test_the_settings_of_a_run_are_those_of_its_config_file(alone: Run) -> None:
    config = settings("--config", str(alone.path / "config.yaml"))
    assert config.train.max_iterations == 24
    assert config.optim.ema_decay == 0.9


def test_commands_and_settings_have_help() -> None:
    answer = call("--help")
    assert answer.code == 0
    assert all(name in answer.output for name in COMMANDS)
    answer = call("train", "--help")
    assert answer.code == 0
    assert "--optim.clip_norm" in answer.output and "micro-batches of each step" in answer.output


def test_the_launcher_prints_its_command() -> None:
    answer = execute(["sh", "scripts/train.sh", "--dry-run", "--train.epochs", "3"])
    assert answer.code == 0, answer.errors
    assert answer.output.count("\n") == 1
    assert "--train.epochs 3" in answer.output


def test_shards_are_disjoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shards", "--world-size", "4"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = [sample for row in rows if row[:1] == ["1"] for sample in row[3:]]
    assert len(first) == len({*first}) > 0


def schedule(steps: int, **changes: Any) -> tuple[torch.optim.Optimizer, Any, dict[str, Any]]:
    """Return an optimizer, its schedule of ``steps`` updates, and their plan."""
    options = OptimConfig(warmup="4 steps", **changes)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], options.lr)
    plan = plan_of(optimizer, options, steps)
    return optimizer, create_scheduler(optimizer, options, 10, steps), plan


def rates(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    """Return the learning rates of the next steps."""
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_a_schedule_warms_up_and_ends_at_its_floor(kind: str) -> None:
    optimizer, scheduler, _ = schedule(20, lr=1.0, schedule=kind, lr_floor=0.1)
    found = rates(optimizer, scheduler, 20)
    assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert sorted(found[3:], reverse=True) == found[3:]
    end = optimizer.param_groups[0]["lr"]
    assert end == pytest.approx(1.0 if kind == "constant" else 0.1)


@pytest.mark.parametrize("changes", [{}, {"lr": 0.5}, {"schedule": "linear"}, {"steps": 30}, {"lr": 0.2, "steps": 16}])
def test_settings_that_changed_apply_to_a_resumed_run(changes: dict[str, Any]) -> None:
    before: dict[str, Any] = {"steps": 20, "lr": 1.0}
    optimizer, scheduler, plan = schedule(**before)
    rates(optimizer, scheduler, 12)
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "plan": plan}
    resumed, resumed_scheduler, new_plan = schedule(**{**before, **changes})
    restore(resumed, resumed_scheduler, new_plan, state)
    fresh, fresh_scheduler, _ = schedule(**{**before, **changes})
    assert rates(resumed, resumed_scheduler, 4) == pytest.approx(rates(fresh, fresh_scheduler, 16)[12:])


def test_periods_are_steps_or_epochs() -> None:
    assert [steps_of(period, 22) for period in ("5 steps", "1 epoch", "0.5 epochs")] == [5, 22, 11]
