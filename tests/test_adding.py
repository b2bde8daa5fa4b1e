"""A new launcher, backend, task, tracker or pack is one folder and one row; nothing else of the template changes."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from baking import ROOT, BakedProject, Target
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

    def installed(target: Target, **answers: Any) -> Installed:
        return install.with_bake(bake)(target, tmp_path / "installed", **answers)

    return installed


def check(project: Installed, target: Target) -> dict[str, Any]:
    """Check types, a run of two processes, and that one process learns the same; return the summary of the run."""
    project.succeed("ruff", "check")
    project.succeed("mypy", f"src/{project.package}/runtime")
    train(project, target, "--train.epochs", "4")
    summary = project.read_json("runs/default/summary.json")
    assert (summary["world_size"], summary["weights_difference"]) == (2, 0.0)
    quietly = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_training.py"]
    print(project.succeed(*quietly, "-k", "one_learns or clipping"))
    return summary


def test_a_launcher_is_a_folder_and_a_row(template: Template, installed: Callable[..., Installed]) -> None:
    files: dict[str, Path | str] = {
        f"{PACKAGE}/runtime/process/launcher.py": PIECES / "launcher.py",
        "docs/nice.md": "# nice\n\nStarts torchrun at a low priority.\n",
        "parts/train.md": "The processes run at a low priority.\n",
    }
    template.folder("launcher/nice", files)

    def row(context: dict[str, Any]) -> None:
        context["launcher"].append("nice")
        context["__prompts__"]["launcher"]["nice"] = "nice: torchrun at a low priority"
        context["_support"]["gloo"]["launchers"].append("nice")

    template.row(row)
    target = Target("cpu", "gloo", "nice")
    project = installed(target)
    said = project.succeed("scripts/train.sh", "--dry-run")
    assert said.split()[:4] == ["env", "OMP_NUM_THREADS=1", "nice", "torchrun"]
    assert check(project, target)["launcher"] == "nice"


def test_a_backend_is_a_folder_and_a_row(template: Template, installed: Callable[..., Installed]) -> None:
    files: dict[str, Path | str] = {
        f"{PACKAGE}/runtime/process/{name}.py": PIECES / f"{name}.py" for name in ("backend", "exchange")
    }
    template.folder("backend/byhand", {**files, "docs/byhand.md": "# byhand\n\nNeeds nothing but torch.\n"})

    def row(context: dict[str, Any]) -> None:
        context["backend"].append("byhand")
        context["__prompts__"]["backend"]["byhand"] = "byhand: an all-reduce in each step"
        context["_support"]["byhand"] = {"hardware": ["cpu"], "launchers": ["torchrun"], "refused": {}}
        context["_requirements"]["backend"]["byhand"] = ["torch>=2.6,<3"]

    template.row(row)
    target = Target("cpu", "byhand", "torchrun")
    assert check(installed(target), target)["backend"] == "byhand"


TRACKER = """\
from __future__ import annotations

from pathlib import Path
from typing import Any


class Tracker:
    \"""Called by tracking.py.\"""

    def __init__(self, run_dir: Path, settings: dict[str, Any], step: int, run_id: str, resumes: bool) -> None:
        self.run_id = run_id
        self.file = (run_dir / "tracked.csv").open("a")

    def log(self, numbers: dict[str, float], step: int) -> None:
        \"""Write a line for each number.\"""
        self.file.writelines(f"{step},{name},{value}\\n" for name, value in numbers.items())

    def finish(self, picture: Path, checkpoint: Path | None) -> None:
        \"""Keep nothing.\"""

    def close(self) -> None:
        \"""Close the file.\"""
        self.file.close()
"""
PACK = """\
from __future__ import annotations

import sys
from typing import Any

from ...config import Config
from ...runtime import Command


def hello(config: Config, options: dict[str, Any]) -> int:
    \"""Print a setting, without importing torch.\"""
    print(config.optim.lr * options["times"], "torch" in sys.modules)
    return 0


COMMANDS = {"hello": Command("Say hello.", "packs.greeting:hello", {"--times": {"type": int, "default": 2}})}
"""


def test_a_task_a_tracker_and_a_pack_are_a_folder_and_a_row_each(
    template: Template, installed: Callable[..., Installed]
) -> None:
    (project,) = template.path.glob("{{*}}")
    shutil.copytree(project / "choices/task/minimal", project / "choices/task/points")
    template.folder("tracker/csv", {f"{PACKAGE}/runtime/report/tracker.py": TRACKER})
    template.folder("use_greeting/true", {f"{PACKAGE}/packs/greeting/__init__.py": PACK})

    def row(context: dict[str, Any]) -> None:
        context["task"].append("points")
        context["__prompts__"]["task"]["points"] = "Points of a smooth function"
        context["tracker"].append("csv")
        context["__prompts__"]["tracker"]["csv"] = "A CSV file"
        context["_bases"]["tracker"]["csv"] = "threaded"
        context["_requirements"]["tracker"]["csv"] = []
        context["use_greeting"] = False
        context["__prompts__"]["use_greeting"] = "Add the pack greeting?"

    template.row(row)
    target = Target("cpu", "gloo", "torchrun")
    made = installed(target, task="points", tracker="csv", use_greeting=True)
    summary = check(made, target)
    assert summary["val_error"] < 0.5
    tracked = (made.path / "runs/default/tracked.csv").read_text().splitlines()
    losses = [float(line.split(",")[2]) for line in tracked if ",eval/val_loss," in line]
    records = (made.path / "runs/default/metrics.jsonl").read_text().splitlines()
    assert losses == [json.loads(line)["val_loss"] for line in records] != []
    assert made.succeed("python3", "-m", made.package, "hello", "--times", "3").split() == ["0.03", "False"]
