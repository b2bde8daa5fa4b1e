"""Too long for every change: random faults, every signal at every moment, 20,000 steps.

``nox -s chaos -- HOURS`` spends HOURS on random faults (default: half an hour), and half an hour on the others.
"""

import itertools
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
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
# A run ends undisturbed after so many faults; each strikes within so many seconds of a start.
FAULTS_OF_A_TRAINING = 8
LATEST_S = 12.0


class Life:
    """A run that one launcher starts again after every fault."""

    def __init__(self, project: Installed, launcher: str, run: Path, workers: int) -> None:
        self.project, self.launcher, self.run = project, launcher, run
        self.settings = [*SETTINGS, "--data.num_workers", str(workers)]
        self.job = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start or resume the run."""
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
        """Return whether the command and all its processes have ended."""
        if self.launcher == "slurm":
            ended = job_state(self.job)["JobState"] in ENDED
        else:
            assert self.process
            ended = self.process.poll() is not None
        return ended and not self.pids()

    def pids(self) -> list[int]:
        """Return the processes of the run: all that inherited its variable."""
        mark, found = f"CHAOS_RUN={self.run}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            # It may end meanwhile, and a zombie has no command line.
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and cluster.command_line(
                    int(folder.name)
                ):
                    found.append(int(folder.name))
        return found

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the command of the user."""
        if self.launcher == "slurm":
            name = "KILL" if number == signal.SIGKILL else "TERM"
            cluster.slurm("scancel", f"--signal={name}", *(["--full"] if name == "KILL" else []), self.job)
        elif self.process and self.process.poll() is None:
            os.kill(self.process.pid, number)


def stop(life: Life, choose: random.Random) -> None:
    """A stop signal, which saves a checkpoint."""
    life.kill(choose.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))


def kill_all(life: Life, choose: random.Random) -> None:
    """A power cut."""
    life.kill(signal.SIGKILL)
    for pid in life.pids():
        end(pid)


def kill_one(life: Life, choose: random.Random) -> None:
    """Kill a rank, a DataLoader worker or the launcher."""
    if pids := life.pids():
        end(choose.choice(pids))


def hang_one(life: Life, choose: random.Random) -> None:
    """Stop a rank, not torchrun itself, until the others time out."""

    def is_rank(pid: int) -> bool:
        if life.launcher == "spawn":
            return "--multiprocessing-fork" in cluster.command_line(pid)
        marked = b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        # A stopped DataLoader worker would not see that its rank ends.
        return marked and "multiprocessing" not in cluster.command_line(pid)

    ranks = []
    for pid in life.pids():
        with suppress(OSError):
            ranks += [pid] if is_rank(pid) else []
    if ranks:
        end(choose.choice(ranks), signal.SIGSTOP)


def damage_newest(life: Life, choose: random.Random) -> None:
    """Kill the run, then flip a bit of its newest checkpoint or cut it."""
    kill_all(life, choose)
    wait_for(life.has_ended, "every process to end", 60)
    files = sorted((life.run / "checkpoints").glob("last_*.pt"), key=lambda file: file.stat().st_mtime)
    # The one before it is left.
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


def steps_lost(run: Path, newest_is_damaged: bool) -> int:
    """Return the number of recorded steps after the checkpoint that the run resumes from."""
    records = run / "steps.jsonl"
    lines = records.read_text().splitlines() if records.exists() else []
    # The last line may be incomplete.
    done = max(
        (int(found[1]) for line in lines if (found := re.search(r'"iteration": (\d+)', line))), default=0
    )
    saved = sorted(int(file.stem.split("_")[1]) for file in (run / "checkpoints").glob("last_*.pt"))
    kept = saved[:-1] if newest_is_damaged else saved
    return max(done - (kept[-1] if kept else 0), 0)


def result(project: Installed, run: Path) -> tuple[Any, ...]:
    """Return the weights, bit by bit, and all records without times."""
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
    # Of each fault: seconds until every process has ended, and repeated steps.
    costs: dict[str, list[tuple[float, int]]] = {}
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
            struck = time.monotonic()
            fault(life, choose)
            wait_for(life.has_ended, f"every process to end after {fault.__name__} ({launcher})", 120)
            cost = time.monotonic() - struck, steps_lost(run, newest_is_damaged=fault is damage_newest)
            costs.setdefault(f"{launcher} {fault.__name__}", []).append(cost)
        life.start()
        wait_for(life.has_ended, "the end", 300)
        assert result(life.project, run) == expected[launcher], (
            f"{run} differs; see {run.with_suffix('.log')}"
        )
        print(f"{number} trainings, {sum(map(len, costs.values()))} faults: all as undisturbed", flush=True)
    for name, measured in sorted(costs.items()):
        seconds, steps = ([cost[part] for cost in measured] for part in (0, 1))
        print(
            f"{len(measured):4} {name}: ended after {statistics.median(seconds):.1f} s (at most {max(seconds):.1f}), "
            f"{statistics.median(steps):g} steps lost (at most {max(steps)})"
        )


@pytest.mark.chaos
def test_memory_and_open_files_stay_level_over_20_000_steps(install: Installer, tmp_path: Path) -> None:
    """In every process, DataLoader workers included, after the first thousand steps."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    life = Life(project, "torchrun", tmp_path / "run", workers=1)
    life.settings = [
        *("--task.width", "8", "--data.batch_size", "16", "--data.num_workers", "1"),
        *(
            "--train.max_iterations",
            "20000",
            "--train.evaluate_every",
            "500 steps",
            "--train.log_every",
            "100",
        ),
    ]
    life.start()
    steps = life.run / "steps.jsonl"
    seen: dict[int, list[tuple[float, float, int]]] = {}
    while not life.has_ended():
        time.sleep(0.25)
        step = len(steps.read_text().splitlines()) * 100 if steps.exists() else 0
        for pid in life.pids() if step > 1000 else ():
            with suppress(OSError):
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
                files = len(os.listdir(f"/proc/{pid}/fd"))
                seen.setdefault(pid, []).append((step / 10_000, resident / 1e6, files))
    assert (life.run / "summary.json").exists(), life.run.with_suffix(".log").read_text()[-2000:]
    lasting = {pid: samples for pid, samples in seen.items() if len(samples) > 50}
    # The launcher, and of both ranks: itself, the fork server and a DataLoader worker.
    assert len(lasting) >= 7
    for pid, samples in lasting.items():
        at, memory = [sample[0] for sample in samples], [sample[1] for sample in samples]
        opened = [sample[2] for sample in samples]
        slope, error = slope_of(at, memory)
        level = statistics.fmean(memory)
        print(
            f"process {pid}: {level:.0f} MB, {slope:+.2f} +- {error:.2f} MB in 10,000 steps; "
            f"{min(opened)} to {max(opened)} open files",
            flush=True,
        )
        assert slope < 0.01 * level
        assert statistics.median(opened[-20:]) <= statistics.median(opened[:20])


def slope_of(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the line through the points, and its standard error."""
    slope, intercept = statistics.linear_regression(x, y)
    rest = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True)) / (len(x) - 2)
    mean = statistics.fmean(x)
    return slope, (rest / sum((a - mean) ** 2 for a in x)) ** 0.5


# Loaded in every process. At the first MOMENT, rank 0 writes MOMENT_FILE and waits.
MOMENTS = """
import contextlib, os, sys, time
from pathlib import Path
import ignite.distributed as idist
from ignite.engine import Events
training, storage = (sys.modules[f"{package}.{{name}}"] for name in ("train", "runtime.state.checkpoints"))
create_trainer, evaluate, replacing = training.create_trainer, training.evaluate, storage.replacing
def pause(moment):
    file = Path(os.environ["MOMENT_FILE"])
    if os.environ["MOMENT"] == moment and idist.get_rank() == 0 and not file.exists():
        file.touch()
        time.sleep(0.5)
def pausing_create_trainer(*arguments):
    pause("start")
    trainer = create_trainer(*arguments)
    trainer.add_event_handler(Events.ITERATION_STARTED(once=25), lambda: pause("step"))
    return trainer
def pausing_evaluate(*arguments, **names):
    pause("evaluation")
    return evaluate(*arguments, **names)
@contextlib.contextmanager
def pausing_replacing(file):
    with replacing(file) as draft:
        yield draft
        if file.name.startswith("last_"):
            pause("saving")
training.create_trainer, training.evaluate, storage.replacing = pausing_create_trainer, pausing_evaluate, pausing_replacing
"""


@pytest.mark.chaos
@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "slurm", "mpirun", "horovodrun"])
def test_every_signal_at_every_moment_ends_in_a_checkpoint(
    install: Installer, launcher: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if launcher == "slurm":
        request.getfixturevalue("slurm_cluster")
    backend = "horovod" if launcher == "horovodrun" else "gloo"
    project = install(Target("cpu", backend, launcher), tmp_path)
    package = project.path / "src" / project.package
    (package / "moments.py").write_text(MOMENTS.format(package=project.package))
    training = package / "train.py"
    training.write_text(training.read_text() + "\n\nfrom . import moments\n")
    stops = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    moments = ["start", "step", "evaluation", "saving"]
    for number, moment, workers in itertools.product(stops, moments, [0, 1, 2]):
        if launcher == "slurm" and moment == "start" and number != signal.SIGUSR1:
            # scancel signals each rank, which ends at once: nothing to save yet.
            continue
        case = f"{number.name}-{moment}-{workers}"
        run, reached = tmp_path / case, tmp_path / f"{case}.reached"
        variables = {"MOMENT": moment, "MOMENT_FILE": str(reached)}
        life = Life(
            replace(project, environment={**project.environment, **variables}), launcher, run, workers
        )
        life.start()
        wait_for(reached.exists, f"{case} to begin")
        if launcher == "slurm":
            # To every process of the job; exit code 85 requeues it.
            cluster.slurm("scancel", f"--signal={number.name.removeprefix('SIG')}", life.job)
            wait_for(lambda: int(job_state(life.job)["Restarts"]) == 1, f"{case} to stop")  # noqa: B023
            cluster.slurm("scancel", life.job)
        else:
            life.kill(number)
        wait_for(life.has_ended, f"every process of {case} to end")
        assert life.process is None or life.process.returncode == 85, case
        assert (run / "stopped").exists(), case
        assert list((run / "checkpoints").glob("last_*.pt")), case
        print(f"{launcher} {case}: 85" if life.process else f"{launcher} {case}: queued again", flush=True)
