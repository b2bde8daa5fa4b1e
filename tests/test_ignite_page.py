"""The two programs of docs/ignite.md run, survive kills, and learn the same as each other."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from baking import ROOT, Target
from installing import Installed, Installer
from launching import processes_with, wait_for

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

PAGE = ROOT / "docs" / "ignite.md"
EPOCHS = 30
# Prints the weights of a checkpoint, bit by bit, whether it holds more or not.
WEIGHTS = """
import sys, torch
content = torch.load(sys.argv[1], weights_only=True)
for name, tensor in content.get("model", content).items():
    print(name, tensor.numpy().tobytes().hex())
"""


def programs() -> dict[str, str]:
    """The blocks outside of tables belong to both programs, those in a table to one each."""
    parts: dict[str, list[str]] = {"plain": [], "ignite": []}
    for text in re.split(r"(<table>.*?</table>)", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if text.startswith("<table>"):
            # Two columns that GitHub shows beside each other without scrolling.
            assert len(blocks) == 2 and max(map(len, "".join(blocks).splitlines())) <= 60
            for program, block in zip(parts.values(), blocks, strict=True):
                program.append(block)
        else:
            for program in parts.values():
                program += blocks
    return {name: "\n\n".join(blocks) for name, blocks in parts.items()}


def start(project: Installed, program: Path, run: Path) -> "subprocess.Popen[bytes]":
    """Start a program in two processes, which write to RUN.log."""
    with run.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            ["torchrun", "--standalone", "--nproc-per-node=2", str(program), str(run)],
            cwd=project.path,
            env={**project.environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def finish(project: Installed, program: Path, run: Path) -> None:
    """Run a program to its end."""
    process = start(project, program, run)
    try:
        assert process.wait(timeout=300) == 0, run.with_suffix(".log").read_text()
    finally:
        kill(process, run)


def kill(process: "subprocess.Popen[bytes]", run: Path) -> None:
    """Kill what is left of a program: torchrun's processes would outlive it."""
    for pid in processes_with(str(run)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def weights(project: Installed, run: Path, pattern: str) -> str:
    """Return the weights in the newest of some files of a run."""
    newest = max(run.glob(pattern), key=lambda file: file.stat().st_mtime)
    return project.succeed("python3", "-c", WEIGHTS, str(newest))


def test_both_programs_of_the_page_resume_and_learn_the_same(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    found = {}
    for name, text in programs().items():
        program = tmp_path / f"with_{name}.py"
        program.write_text(text)
        whole, killed = tmp_path / f"{name}-whole", tmp_path / f"{name}-killed"
        finish(project, program, whole)
        # The first moment is between two files: that of the best model, and the one to resume from.
        for epoch in (3, 15):
            log = killed.with_suffix(".log")
            process = start(project, program, killed)
            try:
                reached = re.compile(rf"^{epoch} ", re.MULTILINE)
                wait_for(lambda log=log, reached=reached: reached.search(log.read_text()), f"epoch {epoch}")  # type: ignore[misc]
            finally:
                kill(process, killed)
        finish(project, program, killed)
        resumed = [int(epoch) for epoch in re.findall(r"resumed after epoch (\d+)", log.read_text())]
        # Each of the two processes says it, after each of the two kills.
        assert len(resumed) == 4 and 2 <= resumed[0] < 15 <= resumed[-1] + 1 < EPOCHS, resumed
        # One best model, of the same epoch: none from before a kill is left, or forgotten.
        best = [sorted(file.name for file in run.glob("best*")) for run in (whole, killed)]
        assert best[0] == best[1] and len(best[0]) == 1, best
        for pattern in ("best*", "last*"):
            found[name, pattern] = weights(project, killed, pattern)
            assert found[name, pattern] == weights(project, whole, pattern), pattern
        # A finished run that is started again stays as it is.
        finish(project, program, whole)
        assert weights(project, whole, "last*") == found[name, "last*"]
    for pattern in ("best*", "last*"):
        assert found["plain", pattern] == found["ignite", pattern]
