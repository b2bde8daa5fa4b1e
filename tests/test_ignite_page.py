"""The two programs of docs/ignite.md run, survive kills, and learn the same as each other."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from baking import ROOT, Target
from installing import Installed, Installer
from launching import processes_with

pytestmark = [pytest.mark.executed, pytest.mark.thorough, pytest.mark.seldom]

PAGE = ROOT / "docs" / "ignite.md"
LIMIT_S = 300
# The page's 30 epochs may be over in a second, before a test can kill them.
OF_THE_PAGE, EPOCHS = "EPOCHS, BATCH = Path(sys.argv[1]), 30, 64", 100
# A thread of the process group that outlives Python aborts the exit, now and then.
NO_THREAD_IS_LEFT = """
names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in names), names
"""
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
    found = {name: "\n\n".join(blocks) for name, blocks in parts.items()}
    assert all(text.count(OF_THE_PAGE) == 1 for text in found.values())
    longer = OF_THE_PAGE.replace("30", str(EPOCHS))
    return {name: text.replace(OF_THE_PAGE, longer) + NO_THREAD_IS_LEFT for name, text in found.items()}


def execute(project: Installed, program: Path, run: Path, killed_after: int = 0) -> str:
    """Run a program in two processes to its end, or kill it after so many epochs; return what it has said."""
    log = run.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            ["torchrun", "--standalone", "--nproc-per-node=2", str(program), str(run)],
            cwd=project.path,
            env={**project.environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            if killed_after and len(re.findall(r"^\d+ ", log.read_text(), re.MULTILINE)) >= killed_after:
                break
            time.sleep(0.01)
        assert process.poll() == (None if killed_after else 0), log.read_text()
    finally:
        # All of them: torchrun's processes would outlive it.
        for pid in processes_with(str(run)):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    return log.read_text()


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
        execute(project, program, whole)
        # A line of the log comes between two files: that of the best model, and the one to resume from.
        said = [execute(project, program, killed, killed_after=epochs) for epochs in (3, 20, 0)]
        # Both processes say where they resume, in all starts but the first.
        resumed = [{*map(int, re.findall(r"resumed after epoch (\d+)", text))} for text in said]
        assert [len(epochs) for epochs in resumed] == [0, 1, 1], resumed
        assert 2 <= min(resumed[1]) < min(resumed[2]) < EPOCHS, resumed
        # One best model, of the same epoch: none from before a kill is left, or forgotten.
        best = [sorted(file.name for file in run.glob("best*")) for run in (whole, killed)]
        assert best[0] == best[1] and len(best[0]) == 1, best
        for pattern in ("best*", "last*"):
            found[name, pattern] = weights(project, killed, pattern)
            assert found[name, pattern] == weights(project, whole, pattern), pattern
        # A finished run that is started again stays as it is.
        execute(project, program, whole)
        assert weights(project, whole, "last*") == found[name, "last*"]
    for pattern in ("best*", "last*"):
        assert found["plain", pattern] == found["ignite", pattern]
