"""Start a run as a Slurm job of scripts/train.sbatch.

NPROC_PER_NODE  processes on each node (default: 2 on CPUs, else 1)
NNODES          nodes (default: 1)
RUN_DIR         run directory (default: train.run_dir, if it is set, else runs/ and the job's number); an older run there
                is resumed
SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and the like are sbatch's own; SBATCH_WAIT=1 waits for the job
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from .. import state
from ..report import Check, UsageError
from . import Size, hardware, number_from_environment

NAME = "slurm"
ELSEWHERE = True  # whether runs start on other machines
# What resumes a stopped run.
RESUME = "the same command"
if "SLURM_JOB_ID" in os.environ:
    RESUME = "the job, if Slurm requeues it, or else NNODES={nnodes} NPROC_PER_NODE={nproc} RUN_DIR={run_dir} "
    RESUME += "scripts/train.sh --config {run_dir}/config.yaml"
ENDS_WITH_LAUNCHER = True  # whether the kernel ends a process with its parent
# Of rank, world size, local rank, local world size, beside torchrun's.
RANK_VARIABLES = (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),)
SCRIPT = "scripts/train.sbatch"
SUBMITTED = Path("runs/submitted")


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have."""
    nnodes = number_from_environment("NNODES") or 1
    return Size(range(nnodes, nnodes + 1), nproc_per_node)


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that submits the job, after the variables it needs.

    Args:
        run_dir: train.run_dir, unless it is the default; RUN_DIR takes precedence.
    """
    settings = arguments[3:]
    run_dir = os.environ.get("RUN_DIR") or run_dir
    options = [f"--nodes={size.nnodes[0]}", f"--ntasks-per-node={size.nproc_per_node}"]
    if hardware.RESERVED:
        options.append(f"--{hardware.RESERVED}-per-node={size.nproc_per_node}")
    variables = [f"RUN_DIR={run_dir}"] if run_dir else []
    return ["env", *variables, "sbatch", "--parsable", *options, SCRIPT, *settings]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Write the settings to a file for the job, which may wait for days; return the options that read it alone."""
    text = yaml.safe_dump(state.plain(config), sort_keys=False)
    file = SUBMITTED / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    state.write(file, text)
    return ["--config", str(file)]


def start(command: list[str], run_dir: Path) -> int:
    """Submit the job and print how to follow it; return the exit code.

    Raises:
        UsageError: if a signal ends the wait for the job, which is then cancelled.
    """
    output = _option("output", "o") or "slurm-%j.out"
    if "%" not in str(folder := Path(output).parent):
        # Without it, Slurm would end the job at once, with no message.
        folder.mkdir(parents=True, exist_ok=True)
    job, code = _submit(command)
    if not job:
        return code
    known = {"j": job, "A": job, "x": _option("job-name", "J") or Path(SCRIPT).name}
    output = re.sub(r"%\d*([a-zA-Z])", lambda part: known.get(part[1], "*"), output)
    if code:
        print(f"error: job {job} failed. Read {output} for the reason.", file=sys.stderr)
        return code
    name = next((word.removeprefix("RUN_DIR=") for word in command if word.startswith("RUN_DIR=")), f"runs/{job}")
    print(f"job {job} is submitted; its run directory is {name}")
    print(f"follow it with  tail -F {output}  and  squeue --job {job}; end it with  scancel {job}")
    return 0


def _option(name: str, letter: str) -> str:
    """Return the value of an option of sbatch, from its variable or else from the job's script; "" for neither."""
    if variable := os.environ.get(f"SBATCH_{name.upper().replace('-', '_')}"):
        return variable
    pattern = rf"^#SBATCH\s(?:.*\s)?(?:--{name}[=\s]\s*|-{letter}\s*)(\S+)"
    return "".join(re.findall(pattern, Path(SCRIPT).read_text(encoding="utf-8"), re.MULTILINE)[-1:])


def _submit(command: list[str]) -> tuple[str, int]:
    """Run sbatch, which waits for the job if SBATCH_WAIT is set; return the job's number and the exit code."""
    job = ""
    sbatch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def cancel(number: int, frame: FrameType | None) -> None:
        if job:
            subprocess.run(["scancel", job], check=False)
        else:
            sbatch.kill()
        done = f"job {job} was cancelled" if job else "no job was submitted"
        raise UsageError(f"stopped by a signal; {done}. Start again.", 128 + number)

    handlers = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert sbatch.stdout
        job = sbatch.stdout.readline().strip().partition(";")[0]
        return job, sbatch.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def checks() -> Iterator[Check]:
    """Yield a check that jobs can be submitted here."""
    path = shutil.which("sbatch")
    yield Check("cluster", path is not None, path or "sbatch is not on the PATH", "log in to the cluster")
