"""Settings: their defaults, and what is refused."""

import sys

import pytest
import yaml
from conftest import PACKAGE, PROJECT, run

from {{ cookiecutter.package_name }}.__main__ import main
from {{ cookiecutter.package_name }}.config import Config, to_dict


def test_the_default_file_holds_every_setting_with_its_default() -> None:
    file = yaml.safe_load((PROJECT / "configs" / "default.yaml").read_text())
    settings = to_dict(Config())
    # What a project is made for stands in the file alone.
    for name in ("backend", "device", "nproc_per_node"):
        del file["distributed"][name], settings["distributed"][name]
    assert file == settings


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--optim.rate", "1"], "there is no setting optim.rate: the valid ones are optim.name, optim.lr"),
        (["train", "--optim.lrr=1"], "did you mean optim.lr?"),
        (["train", "--epochs", "3"], "did you mean train.epochs?"),
        (["train", "--distributed.nproc_per_node", "two"], "distributed.nproc_per_node: not a valid value"),
        (["train", "--data.dataset", "mnist"], "one of ['digits', 'cifar10', 'folder', 'synthetic'], not mnist"),
        (["train", "--data.batch_size", "many"], "data.batch_size: expected int, not many"),
        (["train", "--data.batch_size", "0"], "data.batch_size must be at least 1, not 0"),
        (["train", "--model.width", "12"], "model.width must be a multiple of 8, not 12"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["trian"], "there is no command trian: the valid ones are train"),
        (["evaluate"], "checkpoint"),
    ],
)
def test_bad_usage_is_refused_in_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1


def test_help_answers_without_importing_torch() -> None:
    code = f"import sys; sys.argv = ['x', 'train', '--help']\nfrom {PACKAGE}.__main__ import main\n"
    code += "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    answer = run([sys.executable, "-c", code])
    assert "--data.batch_size" in answer.output
    assert answer.output.endswith("False\n")
