"""A new launcher, a new backend, a new task: one folder and one row each, and nothing else of the template changes."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from baking import ROOT, BakedProject, Target
from conftest import Bake
from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]
from installing import Installed, Installer
from launching import train

pytestmark = [pytest.mark.executed, pytest.mark.thorough, pytest.mark.seldom]

PIECES = Path(__file__).parent / "adding"
PACKAGE = "src/{{cookiecutter.package_name}}"


@dataclasses.dataclass
class Template:
    """A copy of the template, to which something is added."""

    path: Path

    def folder(self, name: str, files: dict[str, Path | str]) -> None:
        """Add a folder to choices/: its files, copied or written."""
        (project,) = self.path.glob("{{*}}")
        for place, source in files.items():
            file = project / "choices" / name / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.read_text() if isinstance(source, Path) else source)

    def row(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change cookiecutter.json."""
        file = self.path / "cookiecutter.json"
        context = json.loads(file.read_text())
        change(context)
        file.write_text(json.dumps(context, indent=2))


@pytest.fixture
def template(tmp_path: Path) -> Template:
    copy = tmp_path / "template"
    copy.mkdir()
    shutil.copy(ROOT / "cookiecutter.json", copy)
    for folder in (ROOT / "hooks", *ROOT.glob("{{*}}")):
        shutil.copytree(folder, copy / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    return Template(copy)


@pytest.fixture
def installed(template: Template, tmp_path: Path, install: Installer) -> Callable[..., Installed]:
    """Bake from the copy and install, into the environments that other tests use too."""

    def bake(**answers: str | bool) -> BakedProject:
        config = tmp_path / "config"
        config.write_text(
            json.dumps({key: str(tmp_path / key) for key in ("cookiecutters_dir", "replay_dir")})
        )
        path = cookiecutter(
            str(template.path),
            no_input=True,
            extra_context=answers,
            output_dir=str(tmp_path),
            config_file=str(config),
        )
        return BakedProject(Path(path), {"package_name": "my_ddl_project"})

    def installed(target: Target, **answers: str) -> Installed:
        return install.with_bake(bake)(target, tmp_path / "installed", **answers)

    return installed


def check(project: Installed, target: Target, *tests: str) -> dict[str, Any]:
    """The project is typed and trains with two processes, and so do ``tests``, those of its own that what was added may
    break. Return the training's summary."""
    project.succeed("ruff", "check")
    project.succeed("mypy")
    train(project, target, "--train.epochs", "4")
    summary = project.read_json("runs/default/summary.json")
    assert (summary["world_size"], summary["weights_difference"]) == (2, 0.0)
    print(project.succeed("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests))
    return summary


def test_a_launcher_is_a_folder_and_a_row(template: Template, installed: Callable[..., Installed]) -> None:
    files: dict[str, Path | str] = {
        f"{PACKAGE}/distributed/launcher.py": PIECES / "launcher.py",
        "docs/nice.md": "# nice\n\nStarts torchrun at a low priority.\n\n## Exit codes\n\nThey are torchrun's.\n",
        "parts/train.md": "The processes run at a low priority.\n",
    }
    template.folder("launcher/nice", files)

    def row(context: dict[str, Any]) -> None:
        context["launcher"].append("nice")
        context["__prompts__"]["launcher"]["nice"] = "nice: torchrun at a low priority"
        context["_support"]["gloo"]["launchers"].append("nice")
        context["_cluster_launchers"].append("nice")

    template.row(row)
    target = Target("cpu", "gloo", "nice")
    project = installed(target)
    said = project.succeed("scripts/train.sh", "--dry-run")
    assert said.split()[:3] == ["env", "OMP_NUM_THREADS=1", "nice"]
    assert check(project, target, "-k", "two_processes_learn")["launcher"] == "nice"


def test_a_backend_is_a_folder_and_a_row(template: Template, installed: Callable[..., Installed]) -> None:
    files: dict[str, Path | str] = {
        f"{PACKAGE}/distributed/{name}.py": PIECES / f"{name}.py" for name in ("backend", "transport")
    }
    template.folder("backend/byhand", {**files, "docs/byhand.md": "# byhand\n\nNeeds nothing but torch.\n"})

    def row(context: dict[str, Any]) -> None:
        context["backend"].append("byhand")
        context["__prompts__"]["backend"]["byhand"] = "byhand: an all-reduce in each step"
        context["_support"]["byhand"] = {"hardware": ["cpu"], "launchers": ["torchrun"], "refused": {}}
        context["_requirements"]["backend"]["byhand"] = ["torch>=2.6,<3"]

    template.row(row)
    target = Target("cpu", "byhand", "torchrun")
    assert check(installed(target), target, "-k", "clipped or 4-4 or ranks")["backend"] == "byhand"


def test_a_task_is_a_folder_and_a_row(
    template: Template, installed: Callable[..., Installed], bake: Bake
) -> None:
    (project,) = ROOT.glob("{{*}}")
    small = project / "tests" / "small" / "task"
    names = ("settings.py", "data.py", "model.py", "objective.py")
    files: dict[str, Path | str] = {f"{PACKAGE}/task/{name}": small / name for name in names}
    ours = bake()
    common = ours.read("configs/default.yaml")
    task = common[common.index("task:") : common.index("optim:")]
    settings = (
        "task:\n  dataset: single\n  train_size: 1024\n  val_size: 300\n  width: 16\n"
        "  noise: 0.0\n  dropout: 0.0\n  batch_norm: false\n  requires: math\n"
    )
    files |= {
        "configs/default.yaml": common.replace(task, settings),
        "parts/data.md": "The data are points of a smooth function.\n",
        "tests/test_task.py": "def test_nothing() -> None:\n    pass\n",
    }
    template.folder("task/points", files)

    def row(context: dict[str, Any]) -> None:
        context["task"].append("points")
        context["__prompts__"]["task"]["points"] = "Points of a smooth function"

    template.row(row)
    target = Target("cpu", "gloo", "torchrun")
    # The smaller the error, the better.
    summary = check(installed(target, task="points"), target, "tests/test_task.py", "tests/test_commands.py")
    assert summary["val_error"] < 0.5
