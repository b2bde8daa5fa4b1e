"""Start a run by applying a Kubernetes manifest, with torchrun in each pod.

MANIFEST        scripts/trainjob.yaml (default) for clusters with Kubeflow Trainer 2.3 or newer, else scripts/job.yaml
IMAGE, NNODES, NPROC_PER_NODE   image, nodes and processes on each of them (default: those of the manifest)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..report import Check, UsageError
from . import Size

IN_POD = "KUBERNETES_SERVICE_HOST" in os.environ
NAME = "kubernetes"
ELSEWHERE = True  # whether runs start on other machines
# What resumes a stopped run.
RESUME = "kubectl delete of its job, and then the same command," if IN_POD else "the same command"
ENDS_WITH_LAUNCHER = True  # whether the kernel ends a process with its parent
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # of rank, world size, local rank, local world size, beside torchrun's


def size(nproc_per_node: int | None) -> Size:
    """Return how many processes the run will have, from the environment and the manifest."""
    variables = {**os.environ, **({"NPROC_PER_NODE": str(nproc_per_node)} if nproc_per_node else {})}
    command = [sys.executable, "scripts/manifest.py", "--size", _manifest()]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().removeprefix("error: "), done.returncode)
    nnodes, nproc = map(int, done.stdout.split())
    return Size(range(nnodes, nnodes + 1), nproc)


def _manifest() -> str:
    return os.environ.get("MANIFEST") or "scripts/trainjob.yaml"


def command(size: Size, arguments: list[str], run_dir: str | None = None) -> list[str]:
    """Return the command that applies the manifest, after the variables it needs.

    Args:
        run_dir: that of a --config file. It becomes an option, because the manifest has one that takes precedence.
    """
    variables = [f"{name}={os.environ[name]}" for name in ("IMAGE", "NNODES", "NPROC_PER_NODE") if os.environ.get(name)]
    options = [*arguments[3:], *(["--train.run_dir", run_dir] if run_dir else [])]
    return ["env", *variables, "python3", "scripts/manifest.py", "--apply", _manifest(), *options]


def freeze(config: Any, options: list[str]) -> list[str]:
    """Return the options unchanged: the run starts now."""
    return options


def start(command: list[str], run_dir: Path) -> int:
    """Become ``command``, which applies the manifest and prints how to follow the run."""
    os.execvp(command[0], command)


def checks() -> Iterator[Check]:
    """Yield a check that manifests can be applied here, unless this is a pod."""
    path = shutil.which("kubectl")
    if not IN_POD:
        fix = "install it, and configure it for your cluster"
        yield Check("cluster", path is not None, path or "kubectl is not on the PATH", fix)
