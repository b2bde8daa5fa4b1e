"""Settings: their defaults, and what is refused."""

import re
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import pytest
import yaml
from conftest import FOLDERS, PROJECT, call, run
from frame import changes, command_line
from jsonargparse import ArgumentParser

from {{ cookiecutter.package_name }}.config import Config, to_dict


def test_the_default_file_holds_every_setting() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    assert {name: list(section) for name, section in file.items()} == {
        name: list(section) for name, section in to_dict(Config()).items()
    }


def test_the_default_file_counts_wherever_the_command_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "__file__", str(tmp_path / "src" / "package" / "command_line.py"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "default.yaml").write_text("optim:\n  lr: 0.007\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    parser = ArgumentParser(exit_on_error=False)
    command_line.add_settings(parser)
    assert command_line.parse(parser, [])[0].optim.lr == 0.007
    Path("mine.yaml").write_text("train:\n  seed: 3\n")
    settings, _ = command_line.parse(parser, ["--config", "mine.yaml"])
    assert (settings.optim.lr, settings.train.seed) == (0.007, 3)
    # What is wrong with it is no reason not to tell what would be right.
    own = Config().optim.lr
    for content, lr in (("optim: {lr: 0.007}", 0.007), ("optim: {lr: abc}", own), ("nothing: {known: 1}", own)):
        (tmp_path / "configs" / "default.yaml").write_text(content)
        with pytest.raises(SystemExit, match="0"):
            command_line.parse(parser, ["--help"])
        assert re.search(rf"--optim\.lr LR\s[^)]*default:\s+{lr}\)", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--optim.lr", "nan"], "optim.lr must be a number, not nan"),
        (["train", "--data.batch_size", "null"], "data.batch_size must be a whole number, not null"),
        (["train", "--config"], "--config needs a file of settings"),
        (["train", "--optim.rate", "1"], "there is no setting optim.rate: the valid ones are optim.name, optim.lr"),
        (["train", "--optim.lrr=1"], "did you mean optim.lr?"),
        (["train", "--epochs", "3"], "did you mean train.epochs?"),
        (["train", "--data.train_size", "3"], "did you mean task.train_size? the valid ones are data.batch_size"),
        (["train", "--model.width", "3"], "did you mean task.width? the valid ones are data, task, optim"),
        (["train", "--train.patience", "two"], "train.patience must be a whole number or null, not two"),
        (["train", "--distributed.nproc_per_node", "two"], "nproc_per_node must be a whole number or null, not two"),
        (["train", "--task.dataset", "mnist"], "task.dataset must be one of single, listed, whole, seeded, not mnist"),
        (["train", "--data.batch_size", "many"], "data.batch_size must be a whole number, not many"),
        (["train", "--train.evaluate_every", "often"], "such as 500 steps or 1 epoch, not often"),
        (["train", "--train.evaluate_every", "0 epochs"], "train.evaluate_every must be more than 0, not 0 epochs"),
        (["train", "--train.run_dir", ""], "train.run_dir must name a folder"),
        (["train", "--data.batch_size", "0"], "data.batch_size must be at least 1, not 0"),
        (["train", "--task.width", "0"], "task.width must be at least 1, not 0"),
        (["train", "--task.train_size", "48"], "data.batch_size 64 is larger than task.train_size 48"),
        (["launch", "--task.train_size", "48"], "data.batch_size 64 is larger than task.train_size 48"),
        (
            ["train", "--distributed.strategy", "fsdp2", "--distributed.compression", "fp16"],
            "fsdp2 compresses no gradients: leave distributed.compression none",
        ),
        (
            ["train", "--distributed.strategy", "fsdp2", "--train.channels_last", "true"],
            "fsdp2 shares out weights in torch's own layout: set train.channels_last false",
        ),
        (
            ["train", "--distributed.compression", "powersgd", "--train.amp", "fp16"],
            "would keep the infinite gradients by which fp16 finds its scale: choose train.amp bf16",
        ),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["trian"], "there is no command trian: the valid ones are train"),
        (["evaluate"], "checkpoint"),
    ],
)
def test_bad_usage_is_refused_in_one_sentence(arguments: list[str], sentence: str) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert sentence in answer.errors
    assert answer.errors.count("\n") == 1


def test_a_setting_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("data:\n  batch_size: 64\noptim:\n  lr: 0.1\ndata:\n  num_workers: 1\n")
    answer = call("train", "--config", str(file))
    assert (answer.code, answer.errors.count("\n")) == (2, 1)
    assert f"{file}, line 5: data stands twice: keep one" in answer.errors
    file.write_text("optim:\n  lr: 0.1\n  name: sgd\n  lr: 0.2\n")
    assert f"{file}, line 4: lr stands twice: keep one" in call("train", "--config", str(file)).errors


@pytest.mark.parametrize(
    ("change", "strategy", "matters"),
    [
        (("optim.lr", 0.1, 0.2), "ddp", True),
        (("data.num_workers", 0, 2), "ddp", False),
        (("distributed.backend", "one", "another"), "ddp", False),
        (("distributed.nproc_per_node", 1, 2), "ddp", False),
        (("distributed.nproc_per_node", 1, 2), "local-sgd", True),
        (("train.log_every", 10, 20), "zero1", False),
        (("train.log_every", 10, 20), "local-sgd", True),
        (("train.save_every", None, "1 epoch"), "ddp", False),
        (("train.save_every", None, "1 epoch"), "local-sgd", True),
        (("distributed.strategy", "ddp", "fsdp2"), "fsdp2", False),
        (("distributed.strategy", "local-sgd", "ddp"), "ddp", True),
        (("distributed.compression", "none", "powersgd"), "ddp", True),
        (("distributed.sync_batchnorm", False, True), "ddp", True),
    ],
)
def test_a_change_matters_if_something_else_is_learned(
    change: tuple[str, object, object], strategy: str, matters: bool
) -> None:
    assert changes.changes_results(changes.Change(*change), strategy) == matters


HELP = """\
import sys
from {package}.__main__ import main
try:
    main(["train", "--help"])
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize("package", FOLDERS)
def test_help_answers_without_importing_torch(package: str) -> None:
    answer = run([sys.executable, "-c", HELP.format(package=package)], FOLDERS[package])
    assert "--data.batch_size" in answer.output
    assert answer.output.endswith("False\n")


class Kind(Enum):
    """What a task may choose from."""

    LARGE = 1


@dataclass(frozen=True)
class Settings:
    """Fields of all kinds that a task may have."""

    names: tuple[str, ...] = ("a", "b")
    root: Path = Path("data/shapes")
    kind: Kind = Kind.LARGE
    sizes: dict[str, tuple[int, int]] = field(default_factory=lambda: {"small": (1, 2)})


def test_settings_of_every_kind_are_those_of_the_run_when_it_resumes() -> None:
    settings = to_dict(replace(Config(), task=Settings()))  # type: ignore[arg-type]
    kept = yaml.safe_load(yaml.safe_dump(settings))
    assert kept["task"] == {"names": ["a", "b"], "root": "data/shapes", "kind": "LARGE", "sizes": {"small": [1, 2]}}
    assert changes.changed_settings(kept, settings) == []
