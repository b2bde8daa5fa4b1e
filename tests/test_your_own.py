"""Whoever puts their own task into a project gets what docs/your-own-task.md promises: its snippets are executed, as they stand."""

import itertools
import json
import re
from pathlib import Path

import pytest
from baking import Target
from conftest import Bake
from installing import Installed, Installer

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

PAGE = "docs/your-own-task.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGET = Target("cpu", "gloo", "torchrun")

# What the page's sections find in the folder data/.
DATA = """\
import numpy as np
from pathlib import Path
random = np.random.default_rng(0)
rows = random.normal(size=(1000, 4)).astype(np.float32)
rows[:, 3] = rows[:, 0] - 2 * rows[:, 1]
Path("data").mkdir()
np.savetxt("data/table.csv", rows, delimiter=",", header="a,b,c,target", comments="")
for part, chosen in (("train", rows[:800]), ("val", rows[800:])):
    np.save(f"data/{part}_inputs.npy", chosen[:, :3])
    np.save(f"data/{part}_targets.npy", chosen[:, 3])
    Path(f"data/{part}").mkdir()
    for i in range(len(chosen)):
        series = random.normal(size=3 + i % 6).astype(np.float32)
        np.savez(f"data/{part}/{i:03}.npz", series=series, target=series.sum())
"""


def sections(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The page's sections that hold something to run: their titles, and the language and text of each block."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    found = [(title, BLOCK.findall(content)) for title, content in zip(parts[1::2], parts[2::2], strict=True)]
    return [(title, blocks) for title, blocks in found if blocks]


def put(project: Installed, language: str, block: str) -> None:
    """Do to the project's files what the first line of a block says: a new file, or a part of one."""
    first, _, content = block.partition("\n")
    place = re.fullmatch(r"# (in )?(\S+)", first)
    assert place, first
    file = project.path / place[2]
    if not place[1]:
        file.write_text(content)
    elif language == "yaml":
        text, count = re.subn(r"^task:\n(  .*\n)+", content, file.read_text(), flags=re.MULTILINE)
        assert count == 1
        file.write_text(text)
    else:
        # What comes later under the same name takes its place.
        file.write_text(f"{file.read_text()}\n\n{content}")


def install_with_data(install: Installer, folder: Path) -> Installed:
    project = install(TARGET, folder, extras="dev,sweep")
    project.succeed("python3", "-c", DATA)
    return project


def test_every_snippet_of_the_page_works_in_turn(bake: Bake, install: Installer, tmp_path: Path) -> None:
    project = install_with_data(install, tmp_path)
    # Not into the environment, which other tests share.
    beside = project.path / "src"
    project.succeed("uv", "pip", "install", "--quiet", "--target", str(beside / "hub"), "datasets>=4,<5")
    project.environment["PYTHONPATH"] = f"{beside}:{beside / 'hub'}"
    for title, blocks in sections(bake(**TARGET._asdict()).read(PAGE)):
        for language, block in blocks:
            if language != "bash":
                put(project, language, block)
                continue
            command = block.split()
            output = project.succeed(*command)
            if "predict" in command:
                # The target is the first column minus twice the second one.
                predictions = [json.loads(line)["prediction"] for line in output.splitlines()]
                assert predictions == pytest.approx([1, -2], abs=0.5)
            elif "export" in command:
                assert json.loads(output)["difference"] < 1e-6
            elif command[2].endswith(".worst"):
                pairs = [line.split() for line in output.splitlines()]
                errors = [abs(float(said) - float(target)) for said, target in pairs]
                assert len(errors) == 10
                # They are printed to three places.
                assert all(first > second - 0.002 for first, second in itertools.pairwise(errors))
            if "train" not in command:
                continue
            run_dir = command[command.index("--train.run_dir") + 1]
            one = project.read_json(f"{run_dir}/summary.json")
            assert one["val_error"] < 0.3, (title, one)
            if not any("/data.py" in other for _, other in blocks):
                continue
            # The same with the project's launcher, in two processes, learns the same.
            many = [*command[command.index("train") + 1 :], "--train.run_dir", f"{run_dir}-2"]
            project.succeed("scripts/train.sh", *many)
            two = project.read_json(f"{run_dir}-2/summary.json")
            assert (one["world_size"], two["world_size"]) == (1, 2)
            names = [name for name in one if name.startswith("val_")]
            assert {name: two[name] for name in names} == pytest.approx(
                {name: one[name] for name in names}, rel=1e-2
            )
            assert two["weights_difference"] == 0.0
    assert project.read_json("runs/huber/summary.json")["val_r2"] > 0.9
    # The page's own tracker was told what metrics.jsonl was.
    tracked = (project.path / "runs/tracked/tracked.csv").read_text().splitlines()
    losses = [float(line.split(",")[2]) for line in tracked if ",eval/val_loss," in line]
    records = (project.path / "runs/tracked/metrics.jsonl").read_text().splitlines()
    assert losses == [json.loads(line)["val_loss"] for line in records] != []


def test_the_tests_of_a_project_pass_with_another_task(
    bake: Bake, install: Installer, tmp_path: Path
) -> None:
    project = install_with_data(install, tmp_path)
    (_, blocks), *_ = sections(bake(**TARGET._asdict()).read(PAGE))
    for language, block in blocks:
        if language != "bash":
            put(project, language, block)
    # It speaks of the old task: for the user to replace.
    (project.path / "tests" / "test_task.py").unlink()
    # All bring a task of their own; only those of settings and commands could meet this one.
    pytest_quietly = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    project.succeed(*pytest_quietly, "--collect-only")
    met = [f"tests/test_{name}.py" for name in ("config", "commands", "evaluation")]
    print(project.succeed(*pytest_quietly, *met))
    project.succeed("ruff", "check", ".")
    project.succeed("ruff", "format", "--check", ".")
    project.succeed("mypy")
