"""A tracker has the whole of a run that was stopped and resumed, as read back with its own tools.

tests/trackers/NAME.py runs in the project's environment and prints each run as JSON: lists of steps and values by name, the
settings, and the names of the files.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from baking import QUESTIONS, ROOT, Target
from installing import Installed, Installer
from test_ends import training

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

KEY = "a-key-that-nobody-may-read"
RUN = "runs/default"


class Case(NamedTuple):
    """How to use a tracker offline: environment variables, and its server, if it has one."""

    variables: dict[str, str]
    server: Callable[[Path, int], list[str]] | None = None
    runs: int = 1
    """number of its runs after a resume"""
    files: bool = True
    """whether it stores files"""
    ends: tuple[Any, Any] = (None, None)
    """state of a stopped and of a finished run, if they differ"""


CASES = {
    "tensorboard": Case({}, files=False),
    "mlflow": Case(
        {"MLFLOW_TRACKING_URI": "http://127.0.0.1:PORT", "MLFLOW_TRACKING_TOKEN": KEY},
        lambda folder, port: [
            *("mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder)),
        ],
        ends=("KILLED", "FINISHED"),
    ),
    "wandb": Case({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}, ends=(1, 0)),
    # These two resume only runs of their servers.
    "clearml": Case(
        {"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": "HOME", "CLEARML_API_SECRET_KEY": KEY}, runs=2
    ),
    "neptune": Case({"NEPTUNE_MODE": "offline", "NEPTUNE_API_TOKEN": KEY}, runs=2),
    "trackio": Case(
        {"TRACKIO_SERVER_URL": "http://127.0.0.1:PORT", "TRACKIO_WRITE_TOKEN": KEY},
        lambda folder, port: [
            *("env", f"TRACKIO_DIR={folder}", f"TRACKIO_WRITE_TOKEN={KEY}", "python3", "-c"),
            f"import trackio; trackio.show(open_browser=False, server_port={port}, host='127.0.0.1')",
        ],
    ),
    "visdom": Case(
        {"VISDOM_SERVER_URL": "http://127.0.0.1", "VISDOM_PORT": "PORT"},
        # Its own command downloads files for a browser.
        lambda folder, port: [
            "python3",
            "-c",
            f"import visdom.server.run_server as s; s.start_server({port}, base_url='', env_path={str(folder)!r}, bind_local=True)",
        ],
        files=False,
    ),
}


def test_every_tracker_has_a_case() -> None:
    assert {*CASES, "none"} == {*QUESTIONS["tracker"]}


@contextlib.contextmanager
def server(project: Installed, command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server that answers on this port of this machine, until the ``with`` block ends."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=project.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.5)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# The others are tested once a week: each implements the same interface and installs some hundred megabytes.
ALWAYS = ("tensorboard",)


@pytest.mark.parametrize(
    "tracker",
    [pytest.param(tracker, marks=() if tracker in ALWAYS else pytest.mark.trackers) for tracker in CASES],
)
def test_a_stopped_and_resumed_run_is_logged_completely(
    install: Installer, tracker: str, tmp_path: Path
) -> None:
    case = CASES[tracker]
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, tracker=tracker)
    home, folder = tmp_path / "home", tmp_path / "server"
    for made in (home, folder):
        made.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    project.environment["HOME"] = str(home)
    for name, value in case.variables.items():
        project.environment[name] = value.replace("PORT", str(port)).replace("HOME", str(home))
    if case.server:
        project.environment["TRACKIO_DIR"] = str(folder)
    with contextlib.ExitStack() as stack:
        if case.server:
            stack.enter_context(server(project, case.server(folder, port), port, tmp_path / "server.log"))
        run = project.path / RUN
        run.parent.mkdir()
        with training(project, run, "--train.log_every", "11") as process:
            process.terminate()
            assert process.wait(timeout=120) == 85, run.with_suffix(".log").read_text()
        reader = (ROOT / "tests" / "trackers" / f"{tracker}.py").read_text()

        def logged_so_far() -> list[dict[str, Any]]:
            logged: list[dict[str, Any]] = json.loads(
                project.succeed("python3", "-c", reader, RUN).splitlines()[-1]
            )
            return logged

        assert logged_so_far()[-1].get("end") == case.ends[0]
        done = json.loads((run / "steps.jsonl").read_text().splitlines()[-1])["iteration"]
        more = ["--task.width", "8", "--train.log_every", "11", "--train.max_iterations", str(done + 33)]
        project.succeed("scripts/train.sh", *more, "--optim.lr", "0.001")
        if tracker == "tensorboard":  # The same for every tracker.
            trial = ["--train.max_iterations", "2", "--train.run_dir", "runs/trial"]
            project.succeed("scripts/train.sh", *trial, TRACKING="off")
        assert "tracker failed" not in (run / "log.txt").read_text(), (run / "log.txt").read_text()
        runs = logged_so_far()

    assert runs[-1].get("end") == case.ends[1]
    assert len(runs) == case.runs
    logged: dict[str, list[list[float]]] = {}
    for part in runs:
        for name, points in part["points"].items():
            logged.setdefault(name, []).extend(points)
    # Every number of both files, once, and nothing else.
    expected: dict[str, list[list[float]]] = {}
    for group, file in (("train", "steps"), ("eval", "metrics")):
        for line in (run / f"{file}.jsonl").read_text().splitlines():
            record = json.loads(line)
            step = record.pop("iteration")
            for name, value in record.items():
                expected.setdefault(f"{group}/{name}", []).append([step, value])
    assert logged.keys() == expected.keys()
    for name, points in expected.items():
        # Some store float32.
        assert [step for step, _ in logged[name]] == [step for step, _ in points], name
        assert [value for _, value in logged[name]] == pytest.approx(
            [value for _, value in points], rel=1e-6
        ), name
    last = runs[-1]
    # MLflow cannot change the parameters of a run.
    assert float(last["settings"]["optim.lr"]) == (0.003 if tracker == "mlflow" else 0.001)
    best = Path(project.read_json(f"{RUN}/summary.json")["best"]["checkpoint"]).name
    assert last["picture"]
    assert any(best in name for name in last["files"]) or not case.files, last["files"]
    places = [project.path, home, folder]
    kept = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert not [file for file in kept if KEY.encode() in file.read_bytes()]


IMAGES = """\
from glob import glob
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(glob("runs/smoke/tensorboard*")[0])
events.Reload()
print(*(image.step for image in events.Images("first")))
"""


def test_the_snippet_of_the_readme_logs_an_image(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, tracker="tensorboard")
    readme = (project.path / "README.md").read_text().splitlines()
    (snippet,) = (line for line in readme if line.startswith("run.tracker.call("))
    train = project.path / "src" / project.package / "train.py"
    before, record, after = train.read_text().partition('"samples_per_second": round(speed, 1)})\n')
    image = "        import torch\n\n        image = torch.rand(3, 8, 8)\n"
    train.write_text(f"{before}{record}{image}        {snippet}\n{after}")
    project.succeed("scripts/train.sh", "--config", "configs/smoke.yaml")
    assert project.succeed("python3", "-c", IMAGES).split() == ["10", "20"]


def test_a_tracker_that_hangs_costs_a_warning_and_no_step(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, tracker="visdom")
    tracking = project.path / "src" / project.package / "runtime/report/tracking.py"
    tracking.write_text(tracking.read_text().replace("LIMIT_S = 60.0", "LIMIT_S = 5.0"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        project.environment.update({"VISDOM_SERVER_URL": "http://127.0.0.1", "VISDOM_PORT": str(port)})
        project.succeed("scripts/train.sh", "--train.max_iterations", "44", "--task.width", "8", limit_s=90)
    assert project.read_json(f"{RUN}/summary.json")["iteration"] == 44
    log = (project.path / RUN / "log.txt").read_text()
    assert log.count("the tracker failed") == log.count("no answer for 5 s") == 1, log


def test_a_tracker_that_fails_costs_a_warning_and_no_step(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "torchrun"), tmp_path, tracker="visdom")
    # There is no server.
    project.environment.update({"VISDOM_SERVER_URL": "http://127.0.0.1", "VISDOM_PORT": "9"})
    project.succeed("scripts/train.sh", "--train.max_iterations", "44", "--task.width", "8")
    assert project.read_json(f"{RUN}/summary.json")["iteration"] == 44
    log = (project.path / RUN / "log.txt").read_text()
    assert log.count("the tracker failed") == log.count("Error connecting to Visdom server") == 1, log
