"""Random faults at random moments, for as long as asked: every training ends as an undisturbed one, bit for bit.

``nox -s chaos -- HOURS`` (default: half of one). Too long for every change.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cluster
import pytest
from baking import Target
from installing import Installed, Installer
from launching import BYTES, ENDED, job_state, lines_without_speed, submit, wait_for

HOURS = float(os.environ.get("CHAOS_HOURS", "0.5"))
# BatchNorm, augmentation, checkpoints within an epoch; some fifteen seconds of steps.
SETTINGS = [
    *("--task.model", "resnet", "--task.augment", "shift", "--task.width", "8", "--train.epochs", "20"),
    *("--train.log_every", "2", "--train.save_every", "4 steps", "--train.evaluate_every", "11 steps"),
    *("--distributed.timeout_s", "15"),
]
# A training is left alone after so many faults, so that it ends; a moment of a fault lies within so many seconds.
FAULTS_OF_A_TRAINING = 8
LATEST_S = 12.0


class Life:
    """A training under one launcher that is started again after every fault."""

    def __init__(self, project: Installed, launcher: str, run: Path, workers: int) -> None:
        self.project, self.launcher, self.run = project, launcher, run
        self.settings = [*SETTINGS, "--data.num_workers", str(workers)]
        self.job = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the training, or resume it."""
        if self.launcher == "slurm":
            size = {"NNODES": "1", "NPROC_PER_NODE": "2"}
            self.job = submit(
                self.project, *self.settings, RUN_DIR=str(self.run), CHAOS_RUN=str(self.run), **size
            )
            return
        with self.run.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                ["scripts/train.sh", *self.settings, "--train.run_dir", str(self.run)],
                cwd=self.project.path,
                env={**self.project.environment, "CHAOS_RUN": str(self.run)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Tell whether what was started has ended, and all that it had started."""
        if self.launcher == "slurm":
            ended = job_state(self.job)["JobState"] in ENDED
        else:
            assert self.process
            ended = self.process.poll() is not None
        return ended and not self.pids()

    def pids(self) -> list[int]:
        """Return the processes of the training: all that have inherited its mark."""
        mark, found = f"CHAOS_RUN={self.run}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            # A process may end while it is looked at, and one that has ended may not have been told of.
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and cluster.command_line(
                    int(folder.name)
                ):
                    found.append(int(folder.name))
        return found

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to what the user has started."""
        if self.launcher == "slurm":
            name = "KILL" if number == signal.SIGKILL else "TERM"
            cluster.slurm("scancel", f"--signal={name}", *(["--full"] if name == "KILL" else []), self.job)
        elif self.process and self.process.poll() is None:
            os.kill(self.process.pid, number)


def stop(life: Life, choose: random.Random) -> None:
    """One of the signals after which a checkpoint is saved."""
    life.kill(choose.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))


def kill_all(life: Life, choose: random.Random) -> None:
    """As a machine that loses its power."""
    life.kill(signal.SIGKILL)
    for pid in life.pids():
        end(pid)


def kill_one(life: Life, choose: random.Random) -> None:
    """A rank, a loader process or the launcher: whichever it is."""
    if pids := life.pids():
        end(choose.choice(pids))


def hang_one(life: Life, choose: random.Random) -> None:
    """A process that hangs until the others have given up: a rank, and not torchrun itself, which has the rank 0."""

    def is_rank(pid: int) -> bool:
        if life.launcher == "spawn":
            return "--multiprocessing-fork" in cluster.command_line(pid)
        marked = b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        # A loader process that is stopped can see no more that its training ends.
        return marked and "multiprocessing" not in cluster.command_line(pid)

    ranks = []
    for pid in life.pids():
        with suppress(OSError):
            ranks += [pid] if is_rank(pid) else []
    if ranks:
        end(choose.choice(ranks), signal.SIGSTOP)


def damage_newest(life: Life, choose: random.Random) -> None:
    """A bit flips, or the end is missing, while the training does not run."""
    kill_all(life, choose)
    wait_for(life.has_ended, "every process to end", 60)
    files = sorted((life.run / "checkpoints").glob("last_*.pt"), key=lambda file: file.stat().st_mtime)
    # The one before is what is left then.
    if len(files) > 1:
        content = bytearray(files[-1].read_bytes())
        place = choose.randrange(len(content))
        if choose.random() < 0.5:
            content[place] ^= 1 << choose.randrange(8)
        files[-1].write_bytes(content if content != files[-1].read_bytes() else content[:place])


FAULTS: list[Callable[[Life, random.Random], None]] = [stop, kill_all, kill_one, hang_one, damage_newest]


def end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def result(project: Installed, run: Path) -> tuple[Any, ...]:
    """What a training has learned and recorded: the weights bit by bit, all records but for the speed."""
    newest = max((run / "checkpoints").glob("last_*.pt"), key=lambda file: int(file.stem.split("_")[1]))
    records = [lines_without_speed(run / name) for name in ("metrics.jsonl", "steps.jsonl")]
    return newest.name, project.succeed("python3", "-c", BYTES, str(newest)), records


@pytest.mark.chaos
@pytest.mark.timeout(HOURS * 3600 + 3600)
def test_no_fault_changes_what_is_learned(
    install: Installer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time()))
    choose = random.Random(seed)
    print(f"CHAOS_SEED={seed}", flush=True)
    launchers = ["torchrun", "spawn", "slurm"]
    if shutil.which("slurmctld"):
        request.getfixturevalue("slurm_cluster")
    else:
        launchers.remove("slurm")
    projects, expected = {}, {}
    for launcher in launchers:
        (tmp_path / launcher).mkdir()
        projects[launcher] = install(Target("cpu", "gloo", launcher), tmp_path / launcher)
        life = Life(projects[launcher], launcher, tmp_path / f"undisturbed-{launcher}", workers=0)
        life.start()
        wait_for(life.has_ended, "the undisturbed training", 300)
        expected[launcher] = result(life.project, life.run)
    assert len({str(one) for one in expected.values()}) == 1
    deadline = time.monotonic() + HOURS * 3600
    counts: Counter[str] = Counter()
    number = 0
    while time.monotonic() < deadline:
        number += 1
        launcher = choose.choice(launchers)
        run = tmp_path / f"run-{number}"
        life = Life(projects[launcher], launcher, run, workers=choose.choice([0, 0, 1, 2]))
        for _ in range(FAULTS_OF_A_TRAINING):
            life.start()
            fault = choose.choice(FAULTS)
            moment = time.monotonic() + choose.uniform(0, LATEST_S)
            wait_for(lambda: time.monotonic() > moment or life.has_ended(), "the moment of a fault")  # noqa: B023
            if (run / "summary.json").exists():
                break
            fault(life, choose)
            wait_for(life.has_ended, f"every process to end after {fault.__name__} ({launcher})", 120)
            counts[f"{launcher} {fault.__name__}"] += 1
        life.start()
        wait_for(life.has_ended, "the end", 300)
        assert result(life.project, run) == expected[launcher], (
            f"{run} differs; see {run.with_suffix('.log')}"
        )
        print(f"{number} trainings, {sum(counts.values())} faults: all as undisturbed", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:4} {name}")
