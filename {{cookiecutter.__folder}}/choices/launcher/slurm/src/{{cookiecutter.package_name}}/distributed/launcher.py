"""How a training is started: by a job of Slurm, which runs scripts/train.sbatch.

NPROC_PER_NODE  processes on each node (default: 2 in a project for CPUs, else 1)
NNODES          nodes (default: 1)
RUN_DIR         where the run is written (default: train.run_dir of a --config file, or else runs/ and the number of
                the job); an older one is resumed
SEEDS           such as 0-4: an array of jobs, one for each seed
JOBS            how many jobs share the trainings of a sweep, or of several seeds (default: 1)
STARTER         what starts the processes in the job: srun (default), or another of scripts/step-*.sh
SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and the like are sbatch's own
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ..checks import Check, command_check, number_in_environment, number_of_nodes, project_folder
from ..config import PACKAGE, Ranks, Size
from ..errors import UsageError
from . import hardware, starter

NAME = "slurm"
ELSEWHERE = True  # the training runs on other machines than this one
QUEUED = True  # it waits in a queue, and keeps the settings that it had when it was submitted
# what resumes a stopped training: outside a job, what has started it
RESUME = "the same command"
if "SLURM_JOB_ID" in os.environ:
    RESUME = "the job, if Slurm requeues it, or else NNODES={nnodes} NPROC_PER_NODE={nproc} RUN_DIR={run_dir} "
    RESUME += "scripts/train.sh --config {run_dir}/config.yaml"
# variables with which one command starts the processes of many nodes, and waits for them
ON_NODES: dict[str, str] | None = {"SBATCH_WAIT": "1", "RUN_DIR": "{run_dir}"}


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes will train together.

    Raises:
        UsageError: if NNODES is not a number.
    """
    return Size.fixed(number_of_nodes(), nproc_per_node)


def command(size: Size, settings: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that submits the job, with the variables to set before it; or those that share a sweep.

    ``run_dir`` is what a file of settings names; RUN_DIR wins over it.

    Raises:
        UsageError: for a run directory that the job would not know, a starter that is not there, what are no seeds, or a
            variable that says nothing here.
    """
    shared = settings[:1] in (["sweep"], ["seeds"])
    if not shared and any(word.startswith("--train.run_dir") for word in settings):
        raise UsageError("choose the run directory with RUN_DIR=..., so that the job knows it too")
    _step()
    given = {"RUN_DIR": os.environ.get("RUN_DIR") or run_dir, "STARTER": os.environ.get("STARTER")}
    variables = [f"{name}={value}" for name, value in given.items() if value]
    options = [f"--nodes={size.nnodes[0]}", f"--ntasks-per-node={size.nproc_per_node}"]
    if hardware.RESERVED:
        options.append(f"--{hardware.RESERVED}-per-node={size.nproc_per_node}")
    if shared and (asked := _asked("signal")):
        # To the job's script, which passes it on: between two trials no step is there to get it.
        options.append(f"--signal=B:{asked.removeprefix('B:')}")
    seeds = os.environ.get("SEEDS") or ""
    # As sbatch reads them: ranges, in steps, and how many jobs at a time.
    one = r"\d+(-\d+(:\d+)?)?"
    if not re.fullmatch(rf"({one}(,{one})*(%\d+)?)?", seeds):
        raise UsageError(f"SEEDS {seeds} must be seeds, such as 0,1,2 or 0-4")
    if shared and os.environ.get("RUN_DIR"):
        raise UsageError(f"leave out RUN_DIR: {settings[0]} writes where --train.run_dir says")
    if shared and seeds:
        raise UsageError(f"leave out SEEDS: the trainings of {settings[0]} are shared by as many jobs as JOBS says")
    if os.environ.get("JOBS") and not shared:
        raise UsageError("leave out JOBS: only the trainings of sweep and seeds can be shared by several jobs")
    if seeds and any(word.startswith("--train.seed") for word in settings):
        raise UsageError("leave out --train.seed, or SEEDS, which sets it for each job")
    array = f"1-{number_in_environment('JOBS', 'a number of jobs') or 1}" if shared else seeds
    if array:
        options.append(f"--array={array}")
        if asked := _asked("output"):
            options.append(f"--output={asked.replace('%j', '%A_%a')}")
    return [*variables, "sbatch", "--parsable", *options, "scripts/train.sbatch", *settings]


def _asked(option: str) -> str:
    """Return what sbatch's variable, or else scripts/train.sbatch, says for an option of sbatch; "" if neither does."""
    if variable := os.environ.get(f"SBATCH_{option.upper().replace('-', '_')}"):
        return variable
    script = (project_folder() / "scripts/train.sbatch").read_text(encoding="utf-8")
    lines = re.findall(r"^#SBATCH\s+(.+)", script, re.MULTILINE)
    options = ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--output", "-o"), ("--job-name", "-J"), ("--signal",)):
        options.add_argument(*names, dest=names[0], default="")
    found, _ = options.parse_known_args([word for line in lines for word in shlex.split(line, comments=True)])
    written: str = getattr(found, f"--{option}")
    return written


def _step() -> Path:
    """Return the script that starts the processes of a job.

    Raises:
        UsageError: if there is none for STARTER.
    """
    steps = {file.stem.removeprefix("step-"): file for file in sorted(project_folder().glob("scripts/step-*.sh"))}
    wanted = os.environ.get("STARTER") or "srun"
    if wanted not in steps:
        raise UsageError(f"there is no STARTER {wanted}: choose {' or '.join(steps)}")
    return steps[wanted]


def trial() -> list[str] | None:
    """Return the command that trains once in this job, without its settings; None where this is no job."""
    return ["bash", str(_step()), "-m", PACKAGE, "train"] if "SLURM_JOB_ID" in os.environ else None


def start(command: list[str], run_dir: Path) -> int:
    """Submit the job and say how to follow it; return the exit code.

    Raises:
        UsageError: if a signal ends the wait for the job, which is then cancelled.
    """
    options = dict(word.partition("=")[::2] for word in command)
    output = options.get("--output") or _asked("output") or "slurm-%j.out"
    if "%" not in str(folder := Path(output).parent):
        # Without it, Slurm would end the job at once, and nobody would know why.
        folder.mkdir(parents=True, exist_ok=True)
    job, code = _submit(command)
    if code and not job:
        return code
    written = run_dir if "sweep" in command or "seeds" in command else options.get("RUN_DIR", f"runs/{job}")
    # Of an array, the first job.
    first = re.split(r"\D", options.get("--array", ""))[0]
    known = {"j": job, "A": job, "a": first or "*", "x": _asked("job-name") or "train.sbatch"}
    output = re.sub(r"%\d*([a-zA-Z])", lambda part: known.get(part[1], "*"), output)
    if code:
        # It was waited for.
        print(f"error: job {job} has failed: {output} says why", file=sys.stderr)
        return code
    print(f"job {job} is submitted; it writes {written}")
    print(f"follow it with  tail -F {output}  and  squeue --job {job}, end it with  scancel {job}")
    return 0


def _submit(command: list[str]) -> tuple[str, int]:
    """Run sbatch, which waits for the end of the job if SBATCH_WAIT says so; return the job's number and the exit code."""
    job = ""
    sbatch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def cancel(number: int, frame: FrameType | None) -> None:
        if job:
            subprocess.run(["scancel", job], check=False)
        else:
            sbatch.kill()
        raise UsageError(f"stopped: {f'job {job} is cancelled' if job else 'no job was submitted'}", 128 + number)

    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert sbatch.stdout
        job = sbatch.stdout.readline().strip().partition(";")[0]
        return job, sbatch.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ranks() -> Ranks | None:
    """Return which process this is, if a starter inside the job, or srun, started it."""
    return starter.ranks() or Ranks.from_environment(
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"
    )


def checks() -> Iterator[Check]:
    """Yield what this machine needs to start a training."""
    yield command_check("cluster", "sbatch", "log in to the cluster")
