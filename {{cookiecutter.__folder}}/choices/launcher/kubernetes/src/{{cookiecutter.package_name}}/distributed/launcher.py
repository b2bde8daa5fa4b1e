"""How a training is started: by a manifest that Kubernetes applies, with torchrun in each pod.

MANIFEST        scripts/trainjob.yaml (default) for clusters with Kubeflow Trainer 2.3 or newer, else scripts/job.yaml
IMAGE, NNODES, NPROC_PER_NODE   image, nodes and processes on each of them (default: what the manifest says)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..checks import Check, command_check, project_folder
from ..config import Ranks, Size
from ..errors import UsageError
from . import starter

NAME = "kubernetes"
ELSEWHERE = True  # the training runs on other machines than this one
QUEUED = False  # it does not wait in a queue, where its settings would have to be kept
# what resumes a stopped training, in a pod or, with --here, outside
IN_POD = "KUBERNETES_SERVICE_HOST" in os.environ
RESUME = "kubectl delete of its job, and then the same command," if IN_POD else "the same command"
# no single command starts the processes of many nodes, and waits for them
ON_NODES: dict[str, str] | None = None


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes will train together: what the manifest and the environment say.

    Raises:
        UsageError: if there is no such manifest, or NNODES is not a number.
    """
    variables = {**os.environ, **({"NPROC_PER_NODE": str(nproc_per_node)} if nproc_per_node else {})}
    asked = [sys.executable, "scripts/manifest.py", "--size", _manifest()]
    done = subprocess.run(asked, cwd=project_folder(), env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().removeprefix("error: "), done.returncode)
    nnodes, nproc = map(int, done.stdout.split())
    return Size.fixed(nnodes, nproc)


def _manifest() -> str:
    return os.environ.get("MANIFEST") or "scripts/trainjob.yaml"


def command(size: Size, settings: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that applies the manifest, with the variables to set before it.

    ``run_dir`` is what a file of settings names: an option, as the manifest's own would win over the file.
    """
    variables = [f"{name}={os.environ[name]}" for name in ("IMAGE", "NNODES", "NPROC_PER_NODE") if os.environ.get(name)]
    named = ["--train.run_dir", run_dir] if run_dir else []
    return [*variables, "python3", "scripts/manifest.py", "--apply", _manifest(), *settings, *named]


def trial() -> list[str] | None:
    """Refuse to train once and wait for the end: only the cluster knows when that is.

    Raises:
        UsageError: always.
    """
    raise UsageError("kubernetes trains where this process cannot follow: add --here to train here")


def start(command: list[str], run_dir: Path) -> int:
    """Become ``command``, which applies the manifest and says how to follow the training."""
    os.execvp(command[0], command)


def ranks() -> Ranks | None:
    """Return which process this is, if the torchrun of a pod started it."""
    return starter.ranks()


def checks() -> Iterator[Check]:
    """Yield what this machine, or this pod, needs to start a training."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        yield command_check("cluster", "kubectl", "install it, and point it to your cluster")
