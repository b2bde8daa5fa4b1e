"""Start a training as each launcher does, and wait for its end."""

import re
import time
from collections.abc import Callable

import cluster
from baking import Target
from installing import COMMAND_LIMIT_S, Installed

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


def train(
    project: Installed,
    target: Target,
    *settings: str,
    run_dir: str = "runs/default",
    nodes: int = 1,
    processes: str = "2",
) -> None:
    """Train to the end with the target's own launcher; ``processes`` on each node."""
    if target.launcher == "slurm":
        job = submit(project, *settings, RUN_DIR=run_dir, NNODES=str(nodes), NPROC_PER_NODE=processes)
        assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    else:
        options = ["--train.run_dir", run_dir, *settings]
        project.succeed("scripts/train.sh", *options, NPROC_PER_NODE=processes, NNODES=str(nodes))


def submit(project: Installed, *settings: str, **variables: str) -> str:
    """Submit a training to the test cluster's Slurm; return the job's number."""
    variables["SLURM_CONF"] = str(cluster.SLURM_CONF)
    said = project.succeed("scripts/train.sh", *settings, variables=variables)
    found = re.match(r"job (\d+) is submitted", said)
    assert found, said
    return found[1]


def job_state(job: str) -> dict[str, str]:
    """Return what Slurm knows of a job."""
    said = cluster.slurm("scontrol", "--oneliner", "show", "job", job).splitlines()[0]
    return dict(re.findall(r"(\w+)=(\S+)", said))


def wait_for_end(job: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Wait until a job is not started again; return how it ended."""
    wait_for(lambda: job_state(job)["JobState"] in ENDED, f"job {job} to end", limit_s)
    return job_state(job)["JobState"]


def output_of(project: Installed, job: str) -> str:
    """Return what a job has written so far."""
    file = project.path / f"slurm-{job}.out"
    return file.read_text() if file.exists() else ""


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 120) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.25)


def nothing_runs_on_the_nodes() -> bool:
    """Tell whether every process of a training has ended."""
    return not any(cluster.commands(node) for node in cluster.NODES)
