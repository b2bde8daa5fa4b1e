"""Container images without Docker: podman, which needs no daemon, builds and runs them as root, and keeps them in .cache/images.

Where packages come from a folder of wheels, no registry is asked for the images that a Dockerfile begins with either. Stand-ins take
their places: a Debian made by debootstrap, whose Python is the one that the wheels are for, and uv from its own wheel.
"""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FACILITIES = Path(__file__).resolve().parent
CONSTRAINTS = FACILITIES.parent / "constraints.txt"
STORE = FACILITIES.parents[1] / ".cache" / "images"
LIMIT_S = 900
# The Debian that has this Python.
SUITES = {"3.11": "bookworm", "3.13": "trixie"}
# Where a stand-in keeps what the image that it stands for does not have.
OURS = "/stand-in"
# It ignores what would send it to torch's own index, instead of the folder of wheels.
UV = f'#!/bin/sh\nunset UV_TORCH_BACKEND\nexec {OURS}/uv "$@"\n'
# crun refuses machines that have both versions of control groups; podman then sees the first one alone.
ONE_VERSION = (
    'if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec podman "$@"'
)
IN_A_SHELL = ("unshare", "--mount", "--propagation", "private", "sh", "-c", ONE_VERSION)


class Missing(Exception):
    """Something that this machine lacks: what, and how to get it."""


def podman(*arguments: str | Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run podman with a storage of its own, so that no image of this machine is used or changed."""
    if os.getuid() != 0 or not shutil.which("podman") or not shutil.which("crun"):
        raise Missing("podman, as root: apt-get install --no-install-recommends podman crun")
    own: list[str | Path] = [
        "--root",
        STORE / "storage",
        "--runroot",
        STORE / "run",
        "--tmpdir",
        STORE / "tmp",
    ]
    own += ["--runtime", "crun", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    return subprocess.run(
        [*IN_A_SHELL, "podman", *own, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def build(*arguments: str | Path, folder: Path) -> str:
    """Do what ``docker build ARGUMENTS FOLDER`` does; return what it said."""
    options: list[str | Path] = ["--isolation", "chroot", "--layers=false", "--network", "host"]
    if wheels := os.environ.get("PIP_FIND_LINKS"):
        options += [
            "--volume",
            f"{wheels}:{OURS}/wheels:ro",
            "--volume",
            f"{CONSTRAINTS}:{OURS}/constraints.txt:ro",
        ]
        for image, stand_in in _stand_ins((folder / "Dockerfile").read_text()).items():
            options += ["--build-context", f"{image}=container-image://localhost/{stand_in}"]
    return _succeed("build", *options, *arguments, folder)


def run(*arguments: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Do what ``docker run ARGUMENTS`` does, without a network, and within the limits of this process."""
    options = ["--network", "none", "--cgroups", "disabled"]
    # podman's own may be higher, which not every root is allowed to set.
    for name, limit in {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}.items():
        hard = resource.getrlimit(limit)[1]
        options += ["--ulimit", f"{name}={4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)}"]
    return podman("run", *options, *arguments, limit_s=limit_s)


def _succeed(*command: str | Path) -> str:
    done = podman(*command)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def _stand_ins(dockerfile: str) -> dict[str, str]:
    """Return the stand-in for each image that a Dockerfile names, made if it is not there."""
    named = re.findall(r"^(?:FROM |COPY --from=)((?:\S+/)?(\w+):([\w.-]+)@\S+)", dockerfile, re.MULTILINE)
    uv = next((tag for _, name, tag in named if name == "uv"), "none")
    stand_ins = {}
    for image, name, tag in named:
        suite = tag.partition("-")[0] if name == "debian" else SUITES.get(_python(), "")
        if not suite:
            raise Missing(
                f"a Debian with Python {_python()}: run the tests with Python {' or '.join(SUITES)}"
            )
        stand_ins[image] = f"stand-in/{name}:{suite}-uv-{uv}"
        if podman("image", "exists", stand_ins[image]).returncode:
            _make(stand_ins[image], name, suite, uv)
    return stand_ins


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _make(image: str, name: str, suite: str, uv: str) -> None:
    certificates = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    variables = {name: f"{OURS}/certificates.crt" for name in ("SSL_CERT_FILE", "PIP_CERT")}
    variables["UV_FIND_LINKS"] = f"{OURS}/wheels"
    STORE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        root = Path(folder) / "root"
        if name == "uv":
            root.mkdir()
            (root / "uv").write_text(UV)
            (root / "uv").chmod(0o755)
            variables = {}
        else:
            if name == "python":
                _call(
                    FACILITIES / "debian.sh",
                    root,
                    suite,
                    "python3,python3-pip,libpython3-dev,ca-certificates",
                )
                # The Python of its image belongs to nobody else.
                for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                    mark.unlink()
                variables["UV_CONSTRAINT"] = f"{OURS}/constraints.txt"
            else:
                # Its torch is Debian's, which no constraint is about.
                _call(FACILITIES / "debian.sh", root, suite)
            ours = root / OURS.strip("/")
            ours.mkdir()
            shutil.copyfile(certificates, ours / "certificates.crt")
            if uv != "none":
                install = ("uv", "pip", "install", "--quiet", "--target", f"{folder}/uv", f"uv=={uv}")
                _call(sys.executable, "-m", *install)
                shutil.copy(f"{folder}/uv/bin/uv", ours)
        _call("tar", "-C", root, "--one-file-system", "-cf", f"{folder}/root.tar", ".")
        changes = [text for pair in variables.items() for text in ("--change", f"ENV={'='.join(pair)}")]
        _succeed("import", "--quiet", *changes, f"{folder}/root.tar", image)


def _call(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
