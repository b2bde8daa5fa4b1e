"""Images of projects, built and run with the commands of their README.md, by podman and without a network."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import images
import pytest
from baking import BakedProject, Target, missing_facility
from conftest import Bake
from installing import INSTALL_LIMIT_S, one_at_a_time

USER = "1000"
# One target for each way to build an image, and tests of the project that run in it.
BUILT = {
    Target("cpu", "gloo", "torchrun"): ["test_settings.py", "test_task.py"],
    Target("cpu", "horovod", "horovodrun"): ["test_task.py"],
    Target("cpu", "mpi", "mpirun"): ["test_task.py"],
}
# Lines in which other Dockerfiles may differ from a built one: the command, Open MPI's package, the build of torch.
DIFFER = re.compile(
    r"#.*|CMD .*|ARG UV_TORCH_BACKEND=.*|ENV UV_.*|(RUN apt-get update|.*openmpi-bin|.*apt/lists/\*)( \\)?|"
)


@pytest.fixture
def alone() -> Iterator[None]:
    """Lock podman's storage."""
    with one_at_a_time(images.STORE):
        yield


def shown(project: BakedProject, command: str) -> list[str]:
    """Return the arguments of a command that README.md shows, for a user in the folder of the project."""
    (line,) = re.findall(rf"^docker {command} (.+)$", project.read("README.md"), re.MULTILINE)
    return shlex.split(line.replace("$(id -u)", USER))


def test_every_other_dockerfile_differs_from_a_built_one_only_in_those_lines(
    full: dict[Target, BakedProject],
) -> None:
    def lines(target: Target) -> list[str]:
        written = full[target].read("Dockerfile").splitlines()
        return [line for line in written if not DIFFER.fullmatch(line)]

    built = [lines(target) for target in BUILT]
    assert [target for target in full if lines(target) not in built] == []


@pytest.mark.executed
@pytest.mark.docker
@pytest.mark.parametrize("target", BUILT, ids=str)
def test_an_image_trains_offline_and_writes_only_to_data_and_runs(
    bake: Bake, target: Target, tmp_path: Path, alone: None
) -> None:
    baked = bake(**target._asdict())
    project = Path(shutil.copytree(baked.path, tmp_path / "project"))
    runs = project / "runs"
    for folder in (runs, project / "data"):
        folder.mkdir()
        shutil.chown(folder, int(USER))
    *tag, here = shown(baked, "build")
    assert here == "."
    try:
        print(images.build(*tag, folder=project)[-5000:])
    except images.Missing as missing:
        missing_facility(*str(missing).split(": ", 1))
    image = tag[-1]
    *options, last = [word.replace("$PWD", str(project)) for word in shown(baked, "run")]
    assert options[-1] == image and last == "scripts/train.sh"
    options.pop()

    def run(*command: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        done = images.run(*options, *more, image, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    try:
        done = run("scripts/train.sh")
        # Every library finds a writable folder.
        assert not re.search("read-only|permission denied|temporary cache", done.stderr, re.IGNORECASE), (
            done.stderr
        )
        summary = json.loads((runs / "default/summary.json").read_text())
        assert summary["val_accuracy"] >= 0.97
        assert (summary["world_size"], summary["backend"]) == (2, target.backend)
        assert {path.stat().st_uid for path in runs.rglob("*")} == {int(USER)}
        # A user id without a name, as on some clusters.
        smoke = ("scripts/train.sh", "--config", "configs/smoke.yaml")
        runs.chmod(0o777)
        run(*smoke, more=("--user", "4321:4321"))
        ready = run("python3", "-m", baked.package, "doctor", "--json")
        assert json.loads(ready.stdout)["ready"], ready.stdout
        print(images.podman("image", "inspect", "--format", "{{.Size}}", image).stdout)
        assert images.run(*options, image, "sh", "-c", "command -v c++ || command -v cc").returncode
        # Neither the tests nor pytest are in the image.
        install = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(tmp_path / "pytest"),
            "pytest",
        ]
        subprocess.run(install, check=True, timeout=INSTALL_LIMIT_S)
        mounts = [f"{tmp_path}/pytest:/pytest:ro", f"{project}/tests:/app/tests:ro"]
        more = [word for mount in mounts for word in ("--volume", mount)]
        tests = [f"tests/{name}" for name in BUILT[target]]
        pytest_ = ("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        print(run(*pytest_, more=(*more, "--env", "PYTHONPATH=/pytest")).stdout)
    finally:
        images.podman("rmi", "--force", image)
