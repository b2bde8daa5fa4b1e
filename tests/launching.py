"""Start a training as each launcher does, and wait for its end."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cluster
import yaml
from baking import Target
from installing import COMMAND_LIMIT_S, Installed

# Prints the weights of a checkpoint, bit by bit: python3 -c BYTES FILE.
BYTES = """
import sys, torch
for name, tensor in torch.load(sys.argv[1], weights_only=True)["model"].items():
    print(name, tensor.numpy().tobytes().hex())
"""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


def train(
    project: Installed,
    target: Target,
    *settings: str,
    run_dir: str = "runs/default",
    processes: str = "2",
    nodes: int = len(cluster.NODES),
) -> None:
    """Train to the end with the target's own launcher, and so many nodes of the cluster if it needs them."""
    if target.launcher == "slurm":
        size = {"NNODES": str(nodes), "NPROC_PER_NODE": str(int(processes) // nodes)}
        job = submit(project, *settings, RUN_DIR=run_dir, **size)
        assert wait_for_end(job) == "COMPLETED", output_of(project, job)
    elif target.launcher == "kubernetes":
        # Later options win over those of the manifest.
        options = ["--train.run_dir", run_dir, *settings]
        Pods(project, "trainjob.yaml", *options, processes=str(int(processes) // nodes)).succeed()
    else:
        options = ["--train.run_dir", run_dir, *settings]
        project.succeed("scripts/train.sh", *options, NPROC_PER_NODE=processes)


# With waiting_for_data, an epoch takes a second or two.
SYNTHETIC = ("--task.dataset", "synthetic", "--task.synthetic_size", "1024", "--task.width", "8")


def waiting_for_data(project: Installed) -> Installed:
    """Let each synthetic image take its readers 2 ms, in which they compute nothing.

    So a long training takes as long as before, and the tests beside it have the cores.
    """
    data = project.path / "src" / project.package / "task" / "data.py"
    source, reads = data.read_text(), "        chosen = torch.tensor(indices, dtype=torch.int64)\n"
    assert source.count(reads) == 1
    wait = "        __import__('time').sleep(0.002 * len(indices) * (self.images.shape[-1] > 8))\n"
    data.write_text(source.replace(reads, wait + reads))
    return project


class OnNode:
    """A command that runs on a node of the test cluster, and what it has said so far."""

    def __init__(
        self, project: Installed, node: str, command: Sequence[str], log: Path, variables: Mapping[str, str]
    ) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*cluster.enter(node), *command],
                cwd=project.path,
                env={**project.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self.log.read_text()

    def end(self, limit_s: float = 180) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(timeout=limit_s)


class Pods:
    """The pods of a manifest, each on a node of its own, with what the controller would give them."""

    def __init__(self, project: Installed, manifest: str, *settings: str, processes: str = "1") -> None:
        size = {"NNODES": str(len(cluster.NODES)), "NPROC_PER_NODE": processes}
        said = project.succeed(
            "python3", "scripts/manifest.py", f"scripts/{manifest}", *settings, variables=size
        )
        document = list(yaml.safe_load_all(said))[-1]
        self.name = name = document["metadata"]["name"]
        if document["kind"] == "TrainJob":
            container = document["spec"]["trainer"]
            hosts = [f"{name}-node-0-{number}" for number in range(container["numNodes"])]
            injected = {
                "PET_NNODES": str(container["numNodes"]),
                "PET_NPROC_PER_NODE": str(container["numProcPerNode"]),
                "PET_MASTER_ADDR": f"{hosts[0]}.{name}",
                "PET_MASTER_PORT": "29400",
            }
        else:
            container = document["spec"]["template"]["spec"]["containers"][0]
            hosts = [f"{name}-{number}" for number in range(document["spec"]["completions"])]
            injected = {}
        places = zip(cluster.NODES, hosts, strict=True)
        names = "".join(f"{cluster.address(node)} {host}.{name} {host}\n" for node, host in places)
        resolved = project.path / "hosts"
        resolved.write_text(f"127.0.0.1 localhost\n{names}")
        given = {entry["name"]: entry["value"] for entry in container["env"]}
        self.pods = []
        for number, (node, host) in enumerate(zip(cluster.NODES, hosts, strict=True)):
            inside = f'mount --bind {resolved} /etc/hosts; hostname {host}; exec "$@"'
            command = ["sh", "-c", inside, "sh", *container["command"], *container["args"]]
            ranks = {"PET_NODE_RANK": str(number), "JOB_COMPLETION_INDEX": str(number)}
            log = project.path / f"{host}.log"
            self.pods.append(OnNode(project, node, command, log, {**given, **injected, **ranks}))

    def said(self) -> str:
        return "".join(pod.said() for pod in self.pods)

    def succeed(self) -> None:
        """Wait for the end of all pods, which must be a good one."""
        try:
            for pod in self.pods:
                assert pod.end() == 0, pod.said()
        finally:
            for pod in self.pods:
                pod.process.kill()


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


def is_evaluated(run_dir: Path) -> bool:
    """Return whether a run has recorded an evaluation; the file is empty from the start."""
    records = run_dir / "metrics.jsonl"
    return records.exists() and records.stat().st_size > 0


def nothing_runs_on_the_nodes() -> bool:
    """Tell whether every process of a training has ended."""
    return not any(cluster.commands(node) for node in cluster.NODES)


def worker_on(node: str) -> int | None:
    """Return a process that trains on ``node``, not one that only starts others."""
    for pid, line in cluster.commands(node).items():
        words = line.split()
        # The program of a manifest, or the module of the other launchers.
        starts_others = "torchrun" in " ".join(words[:2]) or any(word.endswith(".agent") for word in words)
        if "train" in words and "python" in words[0] and not starts_others:
            return pid
    return None


def listening_addresses(session: int) -> set[str]:
    """Return the addresses, as /proc/net writes them, at which the processes of a session wait for others to connect."""
    stats = {file.parent: file.read_text() for file in Path("/proc").glob("[0-9]*/stat")}
    members = [folder for folder, stat in stats.items() if stat.rpartition(")")[2].split()[3] == str(session)]
    links = [os.readlink(link) for folder in members for link in (folder / "fd").iterdir()]
    sockets = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    rows = [
        line.split() for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def processes_with(word: str) -> list[int]:
    """Return all processes of this machine whose command line holds ``word``."""
    everything = (int(process.name) for process in Path("/proc").glob("[0-9]*"))
    return [pid for pid in everything if word in cluster.command_line(pid)]


def lines_without_speed(file: Path) -> list[dict[str, Any]]:
    """Return the records of a run, without what differs from one machine and one time to another."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {key: line[key] for key in line if key not in ("samples_per_second", "data_wait")} for line in lines
    ]
