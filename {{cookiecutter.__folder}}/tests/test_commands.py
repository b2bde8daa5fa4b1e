"""What the commands say, and how they end when something is wrong."""

import json
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE, PROJECT, call, launch, run
from frame import checks, connectivity, distributed, launcher


def test_shards_are_disjoint_and_complete_for_a_large_world() -> None:
    answer = call("shards", "--world-size", "1000", "--task.train_size", "8192", "--data.batch_size", "4000")
    assert answer.code == 0, answer.errors
    assert "points: 8192 samples" in answer.output
    assert "disjoint, complete and reshuffled: yes" in answer.output
    assert "left out of each epoch, different ones each time: 192" in answer.output


@pytest.mark.parametrize(
    "command",
    [["shards", "--world-size", "0"], ["scaling", "--simulate", "--world-size", "-1"], ["doctor", "--nnodes", "0"]],
    ids=lambda command: command[0],
)
def test_a_world_of_nobody_is_refused(command: list[str]) -> None:
    answer = call(*command)
    assert (answer.code, answer.errors) == (2, f"error: {command[-2]} must be at least 1, not {command[-1]}\n")


COMMANDS_WITH_FOLDER = [["scaling"], ["scaling", "--simulate", "--world-size", "2"], ["seeds", "0", "--here"]]


@pytest.mark.parametrize("command", COMMANDS_WITH_FOLDER, ids=" ".join)
def test_a_file_in_the_place_of_the_run_directory_is_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = call(*command, "--train.run_dir", str(tmp_path / "file"))
    told = f"{tmp_path / 'file'} cannot be a folder (File exists): choose another one"
    assert (answer.code, told in answer.errors, answer.errors.count("\n")) == (1, True, 1), answer.errors


def test_the_doctor_names_the_first_thing_to_do() -> None:
    answer = call("doctor", "--train.run_dir", "/proc/nowhere")
    assert answer.code == 1
    assert answer.output.count("To do:") == 1
    assert "/proc/nowhere cannot be written" in answer.output


def test_a_table_shows_names_as_they_are(tmp_path: Path) -> None:
    folder = str(tmp_path / "lr[0.1]" / "[/b]")
    alone = ("--distributed.nproc_per_node", "1")
    assert f"{folder} can be written" in call("doctor", "--train.run_dir", folder, *alone).output


def test_a_host_name_that_is_that_of_another_machine_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # An address that is kept free for documents.
    monkeypatch.setattr(connectivity, "own_address", lambda: "203.0.113.7")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(checks.free_port()))
    answer = call("doctor", "--nnodes", "1000")
    assert answer.code == 1
    assert "resolves to 203.0.113.7, where this machine cannot listen (Cannot assign" in answer.errors


def test_the_doctor_times_what_the_processes_exchange() -> None:
    output = launch(2, "doctor", "--exchange").output
    measured = json.loads(output[output.index("{") : output.rindex("}") + 1])
    assert measured["weights_difference"] == 0.0
    assert measured["versions_differ"] == {}
    small, large = measured["all_reduce"]
    assert (small["bytes"], large["bytes"]) == (1024, 64 * 2**20)
    for result in (small, large):
        # With two processes, each sends and receives every byte once.
        bandwidth = result["bytes"] / (result["milliseconds"] / 1e3) / 1e9
        assert result["bus_bandwidth_gb_per_s"] == pytest.approx(bandwidth)
    assert large["bus_bandwidth_gb_per_s"] > small["bus_bandwidth_gb_per_s"] > 0
    compared = [check["found"] for check in measured["checks"] if "of one TCP connection" in check["found"]]
    assert len(compared) == ("stream_gb_per_s" in measured)
    assert ("stream_gb_per_s" in measured) == (measured["device"] == "cpu")
    # Wide limits: how fast it is depends on what else the machine does.
    assert 0.01 < measured.get("stream_gb_per_s", 1.0) < 1000


def test_more_processes_than_cores_are_told_of() -> None:
    device = distributed.hardware.check("cpu", 4096)
    # A device that takes one process refuses them.
    assert not device.ok or "4096 processes share" in device.found


@pytest.mark.parametrize("command", [["doctor", "--quiet"], ["train"]])
@pytest.mark.parametrize("setting", [["--train.run_dir", "/proc/nowhere"], ["--task.requires", "no_such_module"]])
def test_what_cannot_work_is_said_in_one_sentence_before_training(
    command: list[str], setting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine need not be one from which jobs are submitted.
    monkeypatch.setattr(distributed.launcher, "checks", list)
    answer = call(*command, *setting, "--distributed.nproc_per_node", "1")
    assert answer.code == 1
    assert answer.errors.startswith("error: ")
    assert setting[1] in answer.errors
    assert answer.errors.count("\n") == 1


def test_one_process_trains_where_there_is_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run_dir = str(tmp_path / "run")
    settings = ("--train.max_iterations", "1", "--distributed.nproc_per_node", "1")
    trained = call("train", "--train.run_dir", run_dir, *settings)
    assert trained.code == 0, trained.errors


def test_dry_run_prints_one_command_and_starts_nothing() -> None:
    # A job that would wait is given its settings as a file.
    kept = {PROJECT / "runs", PROJECT / "runs/submitted"}
    before = {*PROJECT.iterdir(), *PROJECT.glob("runs/*")} | kept
    answer = run(["scripts/train.sh", "--dry-run"])
    assert answer.code == 0, answer.errors
    assert answer.output.count("\n") == 1
    assert {*PROJECT.iterdir(), *PROJECT.glob("runs/*")} | kept == before


def test_a_sweep_trains_with_its_python_where_no_environment_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code = f"import shutil; from {PACKAGE}.trials import use_this_python; use_this_python(); print(shutil.which('python3'))"
    answer = run([sys.executable, "-c", code])
    assert answer.output == f"{Path(sys.executable).with_name('python3')}\n", answer.errors


def test_a_cluster_is_asked_from_the_projects_folder_alone(tmp_path: Path) -> None:
    answer = run([sys.executable, "-m", PACKAGE, "launch", "--dry-run"], tmp_path)
    told = f"error: start this in the project's folder: cd {PROJECT}\n" if launcher.ELSEWHERE else ""
    assert (answer.code, answer.errors, [*tmp_path.iterdir()]) == (2 if told else 0, told, [])
