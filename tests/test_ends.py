"""However a launcher is ended, nothing that it has started goes on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cluster
import pytest
from baking import Target
from installing import Installed, Installer
from launching import is_evaluated, processes_with, wait_for

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

LONG = ["--task.width", "8", "--train.epochs", "2000"]


@contextmanager
def killed_at_last(process: subprocess.Popen[Any], run: Path) -> Iterator[None]:
    """Whatever of a training is left after the ``with`` block is killed; where the block fails, pytest shows the log."""
    try:
        yield
    finally:
        log = run.with_suffix(".log")
        print(log.read_text() if log.exists() else "")
        for pid in processes_with(str(run)):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@contextmanager
def training(project: Installed, run: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A long training that has done an epoch, and writes to ``RUN.log``; at last, every process has to have ended."""
    metrics = run / "metrics.jsonl"
    before = metrics.read_text() if metrics.exists() else ""
    with run.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            ["scripts/train.sh", "--train.run_dir", str(run), *LONG, *settings],
            cwd=project.path,
            env=project.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with killed_at_last(process, run):
        # Horovod takes a minute on a busy machine.
        wait_for(lambda: metrics.exists() and metrics.read_text() > before, "an epoch", 300)
        yield process
        wait_for(lambda: not processes_with(str(run)), "every process to end", 40)


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [
        pytest.param("gloo", "torchrun", marks=pytest.mark.ci),
        ("gloo", "spawn"),
        pytest.param("gloo", "mpirun", marks=pytest.mark.mpi),
        pytest.param("horovod", "horovodrun", marks=pytest.mark.horovod),
        pytest.param("horovod", "spawn", marks=[pytest.mark.horovod, pytest.mark.seldom]),
    ],
)
def test_no_process_outlives_its_launcher(
    install: Installer, backend: str, launcher: str, tmp_path: Path
) -> None:
    """The first signal stops a training, the next ones stop the resumed ones; what stands over the launcher is the same for all."""
    stops = [signal.SIGINT, signal.SIGHUP] if launcher == "torchrun" else [signal.SIGTERM]
    project = install(Target("cpu", backend, launcher), tmp_path)
    run = tmp_path / "run"
    for number in (*stops, signal.SIGKILL):
        with training(project, run, "--data.num_workers", "1") as process:
            if number == signal.SIGINT:
                # A terminal sends Ctrl-C to all processes of the command.
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            code = process.wait(timeout=60)
        if number != signal.SIGKILL:
            assert (code, (run / "stopped").exists()) == (85, True), number
            # What was stopped in order has not failed.
            assert "Traceback" not in run.with_suffix(".log").read_text(), number
        wait_for(lambda: not processes_with(str(project.path)), "the loader processes to end")


# Shows the threads of a process when all that is done at its exit is done.
SHOWS_THREADS = """
import atexit
import pathlib
import sys

def show():
    threads = pathlib.Path("/proc/self/task").glob("*/comm")
    print("LEFT", sorted({file.read_text().strip() for file in threads}), flush=True)

atexit.register(show)
from PACKAGE.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_no_thread_of_the_exchange_outlives_python(install: Installer, tmp_path: Path) -> None:
    """A thread that is still busy would abort the exit of a finished run: a launcher reports that as a failure."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    program = tmp_path / "program.py"
    program.write_text(SHOWS_THREADS.replace("PACKAGE", project.package))
    command = [
        "torchrun",
        "--standalone",
        "--nproc-per-node=2",
        str(program),
        "train",
        "--train.max_iterations",
        "2",
    ]
    said = project.succeed(*command)
    assert re.findall(r"LEFT \[(.*)\]", said) == ["'python'"] * 2, said


# A checkpoint takes four seconds. In step 3, rank 0 gets a stop signal; or rank 1 fails, after a checkpoint was begun.
WRITES_SLOWLY = """
import atexit, os, signal, sys, time
from my_ddl_project.runtime.state import checkpoints
from my_ddl_project.task import objective

rank, how, steps = int(os.environ["RANK"]), sys.argv.pop(1), []
write, loss = checkpoints.write_file, objective.loss

def slowly(content, path, outdated):
    time.sleep(4)
    write(content, path, outdated)
    print("WRITTEN", path.name, flush=True)

def in_step_3(*arguments):
    if torch_is_learning():
        steps.append(1)
        if len(steps) == 3 and (rank, how) == (0, "stop"):
            os.kill(os.getpid(), signal.SIGUSR1)
        if len(steps) == 3 and (rank, how) == (1, "failure"):
            raise RuntimeError("as an example")
    return loss(*arguments)

def torch_is_learning():
    import torch
    return torch.is_grad_enabled()

checkpoints.write_file, objective.loss = slowly, in_step_3
atexit.register(print, f"LEFT {rank}", flush=True)
from my_ddl_project.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "save_every"), [("stop", "1000 steps"), ("failure", "2 steps")])
def test_a_checkpoint_is_written_to_its_end_before_the_launcher_ends_who_writes_it(
    install: Installer, how: str, save_every: str, tmp_path: Path
) -> None:
    """Torchrun ends all processes when one of them has failed, or left with a code that is not 0."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    program = tmp_path / "program.py"
    program.write_text(WRITES_SLOWLY)
    command = ["torchrun", "--standalone", "--nproc-per-node=2", str(program), how, "train", *LONG]
    settings = [
        "--train.save_every",
        save_every,
        "--train.log_every",
        "1",
        "--train.run_dir",
        str(tmp_path / "run"),
    ]
    done = project.run(*command, *settings)
    step = {"stop": 3, "failure": 2}[how]
    written = done.stdout.find(f"WRITTEN last_{step}.pt")
    assert 0 <= written < min(done.stdout.find(f"LEFT {rank}") for rank in range(2 if how == "stop" else 1))
    assert (tmp_path / "run" / "stopped").exists() == (how == "stop")
    if how == "failure":
        assert "[rank 0] stopped at step 3: another process is gone" in done.stderr, done.stderr


def test_ctrl_c_is_no_success_however_early_or_often_it_comes(install: Installer, tmp_path: Path) -> None:
    """Torch's spawn takes a process that was interrupted for one that is done."""
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    run = tmp_path / "early"
    # What a shell starts in the background would ignore Ctrl-C.
    command = ["env", "--default-signal=INT", "scripts/train.sh", *LONG, "--train.run_dir", str(run)]
    process = subprocess.Popen(command, cwd=project.path, env=project.environment, start_new_session=True)
    with killed_at_last(process, run):
        wait_for((run / "log.txt").exists, "the processes to have met")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) != 0
    run = tmp_path / "twice"
    with training(project, run) as process:
        os.killpg(process.pid, signal.SIGINT)
        wait_for(lambda: "stopped by a signal" in (run / "log.txt").read_text(), "the checkpoint")
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)
        assert process.returncode == 85
    assert (run / "stopped").exists()


def begin(project: Installed, run: Path, *before: str) -> subprocess.Popen[str]:
    """Start a long training, whose errors can be read; return at once."""
    return subprocess.Popen(
        [*before, "scripts/train.sh", *LONG, "--train.run_dir", str(run)],
        cwd=project.path,
        env=project.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def children_of(process: subprocess.Popen[Any]) -> dict[int, str]:
    """Return the command lines of the processes that another one has started, by pid."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(pid): cluster.command_line(int(pid)) for pid in pids}


TORCHRUN = "runtime.process.agent"


@pytest.mark.parametrize("begins", [TORCHRUN, "-u -m my_ddl_project"])
def test_ctrl_c_before_the_training_begins_is_told(install: Installer, begins: str, tmp_path: Path) -> None:
    """While torchrun, or then its processes, import torch."""
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    run = tmp_path / "run"
    process = begin(project, run, "env", "--default-signal=INT")

    def some_begin() -> bool:
        return any(begins in cluster.command_line(pid) for pid in processes_with(str(run)))

    with killed_at_last(process, run):
        wait_for(some_begin, "these processes to begin")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("error: stopped before a checkpoint was saved. Start again.\n"), errors
    assert "Traceback" not in errors, errors


# Starts a process that trains in a thread, as torch_xla does for each chip.
AS_ON_CHIPS = """\
import sys
import torch_xla
from my_ddl_project.__main__ import main
from my_ddl_project.runtime.process import local

launch = torch_xla.launch
torch_xla.launch = lambda function, args, debug_single_process: launch(function, args=args)
local._has_one_process = lambda: False
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.xla
def test_a_signal_ends_the_processes_that_torch_xla_has_started(install: Installer, tmp_path: Path) -> None:
    project = install(Target("tpu", "xla-tpu", "spawn"), tmp_path)
    (tmp_path / "as_on_chips.py").write_text(AS_ON_CHIPS)
    # A terminal sends Ctrl-C to all processes of the command.
    for number, send in ((signal.SIGINT, os.killpg), (signal.SIGKILL, os.kill)):
        run = tmp_path / f"run-{number}"
        command = ["python3", str(tmp_path / "as_on_chips.py"), "train", *LONG, "--train.run_dir", str(run)]
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            cwd=project.path,
            env=project.environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with killed_at_last(process, run):
            wait_for(partial(is_evaluated, run), "an epoch")
            started = [
                pid for pid, command in children_of(process).items() if "--multiprocessing-fork" in command
            ]
            assert len(started) == 1
            send(process.pid, number)
            _, errors = process.communicate(timeout=30)
            wait_for(lambda: not any(map(cluster.command_line, started)), "the process to end", 10)  # noqa: B023
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert errors.splitlines()[-1].startswith("error: stopped"), errors
            assert "Traceback" not in errors


def test_a_signal_while_an_end_is_noticed_does_no_harm(install: Installer, tmp_path: Path) -> None:
    """The signal comes after the kernel has said that a process ended, before torch has heard of it.

    The other process has done its work by then, and is exiting: Python has taken its handlers away.
    """
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    program = """
import os, signal, sys, time

class Lingers:
    def __del__(self, environ=os.environ, sleep=time.sleep):
        if environ.get("RANK") == "1":
            sleep(2)

lingers = Lingers()

waited = os.waitpid

def waitpid(pid, options):
    ended = waited(pid, options)
    if ended[0]:
        os.kill(os.getpid(), signal.SIGTERM)
    return ended

if __name__ == "__main__":
    os.waitpid = waitpid
    from my_ddl_project.__main__ import main
    sys.exit(main(sys.argv[1:]))
"""
    (tmp_path / "signalled.py").write_text(program)
    arguments = ["train", "--train.epochs=1", "--train.run_dir", str(tmp_path / "run")]
    project.succeed("python", str(tmp_path / "signalled.py"), *arguments)
    assert (tmp_path / "run" / "summary.json").exists()


def test_ctrl_c_while_the_processes_of_spawn_begin_is_told_once(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    process = begin(project, tmp_path / "run", "env", "--default-signal=INT")

    def both_begin() -> bool:
        return sum("--multiprocessing-fork" in command for command in children_of(process).values()) == 2

    with killed_at_last(process, tmp_path / "run"):
        wait_for(both_begin, "the processes to begin")
        # They import torch.
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (
        130,
        "error: stopped before a checkpoint was saved. Start again.\n",
    )


def test_a_signal_before_the_other_processes_are_started_is_passed_on(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    process = begin(project, tmp_path / "run")

    def keeps_the_signal() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert caught
        return bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)

    with killed_at_last(process, tmp_path / "run"):
        wait_for(keeps_the_signal, "the first process to begin")
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (
        138,
        "error: stopped before a checkpoint was saved. Start again.\n",
    )


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [("torchrun", "RANK=1"), pytest.param("horovodrun", "HOROVOD_RANK=1", marks=pytest.mark.horovod)],
)
def test_a_process_that_hangs_is_waited_for_no_longer_than_the_configuration_says(
    install: Installer, launcher: str, rank: str, tmp_path: Path
) -> None:
    project = install(Target("cpu", "horovod" if launcher == "horovodrun" else "gloo", launcher), tmp_path)
    run = tmp_path / "run"
    with training(project, run, "--distributed.timeout_s", "10") as process:
        for pid in processes_with(str(run)):
            if rank.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGSTOP)
        assert process.wait(timeout=90) == 1
    log = run.with_suffix(".log").read_text()
    assert re.search(r"\[rank 0\] stopped( at step \d+)?: another process (does not answer|is gone)", log), (
        log
    )


EACH_LEARNS_APART = """

def create_optimizer(model, config):
    import ignite.distributed as idist
    import torch

    return torch.optim.SGD(model.parameters(), 0.01 * (1 + idist.get_rank()))
"""


def test_ranks_whose_weights_differ_never_come_to_a_success(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path)
    objective = project.path / "src" / project.package / "task/objective.py"
    objective.write_text(objective.read_text() + EACH_LEARNS_APART)
    # Not when it is started again either, which loads the same weights on all ranks.
    for _ in range(2):
        done = project.run(
            "scripts/train.sh", "--train.epochs", "2", "--train.save_every", "10 steps", limit_s=120
        )
        assert done.returncode == 1
        assert re.search(
            r"error: the ranks' weights differ by \S+ after step \d+; nothing was saved", done.stderr
        )
        assert not (project.path / "runs/default/summary.json").exists()


FAILS_ON_ONE = """
import sys
import ignite.distributed as idist
training = sys.modules["{package}.train"]
create = training.create_trainer
def failing(*arguments):
    trainer = create(*arguments)
    def fail():
        if idist.get_rank() == 1:
            {how}
    trainer.add_event_handler(training.Events.ITERATION_COMPLETED(once=5), fail)
    return trainer
training.create_trainer = failing
"""


def let_one_fail(project: Installed, how: str) -> None:
    """Let rank 1 do this after the fifth step of a training."""
    package = project.path / "src" / project.package
    # Loaded in every process, as the launcher starts them.
    (package / "failing.py").write_text(FAILS_ON_ONE.format(package=project.package, how=how))
    training = package / "train.py"
    training.write_text(training.read_text() + "\n\nfrom . import failing\n")


@pytest.mark.horovod
def test_a_training_that_hangs_is_waited_for_no_longer_though_horovod_s_thread_answers(
    install: Installer, tmp_path: Path
) -> None:
    project = install(Target("cpu", "horovod", "horovodrun"), tmp_path)
    let_one_fail(project, "__import__('time').sleep(600)")
    done = project.run("scripts/train.sh", "--distributed.timeout_s", "10", limit_s=120)
    assert done.returncode == 1
    assert re.search(
        r"\[rank 0\] stopped.*: another process does not answer \(the collective timed out", done.stderr
    )
    wait_for(lambda: not processes_with(str(project.path)), "every process to end", 40)


REFUSES = """

def load(settings):
    import os, time
    from ..runtime import UsageError
    time.sleep(WAITS[int(os.environ["RANK"])])
    raise UsageError("the data are damaged. Fix them.")
"""


@pytest.mark.parametrize("waits", [(1.5, 0), (60, 0)])
def test_a_refusal_is_told_once_though_the_rank_that_tells_it_comes_late(
    install: Installer, waits: tuple[float, float], tmp_path: Path
) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    data = project.path / "src" / project.package / "task" / "data.py"
    data.write_text(data.read_text() + REFUSES.replace("WAITS", str(waits)))
    done = project.run("scripts/train.sh", limit_s=55)
    told = [line for line in done.stderr.splitlines() if "error: " in line]
    assert (done.returncode, told) == (2, ["error: the data are damaged. Fix them."]), done.stderr


@pytest.mark.parametrize(
    ("backend", "launcher"),
    [
        ("gloo", "torchrun"),
        ("gloo", "spawn"),
        # The end of one waits for that of all.
        pytest.param("mpi", "mpirun", marks=pytest.mark.mpi),
    ],
)
def test_the_rank_that_fails_first_tells_why_and_the_others_in_one_line(
    install: Installer, backend: str, launcher: str, tmp_path: Path
) -> None:
    project = install(Target("cpu", backend, launcher), tmp_path)
    let_one_fail(project, "raise ValueError('what is really wrong')")
    done = project.run("scripts/train.sh", limit_s=120)
    assert done.returncode == 1
    assert done.stderr.count("[rank 1] failed at step 5:\nTraceback") == 1
    lines = done.stderr.splitlines()
    assert lines.count("ValueError: what is really wrong") == 1
    others = [line for line in lines if line.startswith("[rank 0]")]
    assert all(re.search("stopped at step [56]: another process is gone", line) for line in others), others
    # Nothing follows what the processes printed: torchrun's own report would fill forty lines. mpirun has one too.
    assert launcher == "mpirun" or lines[-1] == "ValueError: what is really wrong" or lines[-1] in others, (
        done.stderr
    )
