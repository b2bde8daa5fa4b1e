"""What the commands say, and how they end when something is wrong."""

from pathlib import Path

from conftest import call, run

from {{ cookiecutter.package_name }} import distributed


def test_shards_are_disjoint_and_complete_for_a_large_world() -> None:
    result = call("shards", "--world-size", "1000", "--data.dataset", "synthetic", "--data.batch_size", "4000")
    assert result.returncode == 0, result.stderr
    assert "disjoint, complete and reshuffled: yes" in result.stdout
    assert "left out of each epoch, others each time: 192" in result.stdout


def test_the_doctor_names_the_first_thing_to_do() -> None:
    result = call("doctor", "--data.batch_size", "3", "--distributed.nproc_per_node", "2", *distributed.TRIAL)
    assert result.returncode == 1
    assert "To do:" in result.stdout


def test_the_quiet_doctor_says_one_sentence() -> None:
    result = call("doctor", "--quiet", "--train.run_dir", "/proc/nowhere", *distributed.TRIAL)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_train_refuses_an_unwritable_run_directory_without_a_traceback() -> None:
    result = call("train", *distributed.TRIAL, "--train.run_dir", "/proc/nowhere", "--distributed.nproc_per_node", "1")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr


def test_dry_run_prints_one_command_and_starts_nothing(tmp_path: Path) -> None:
    result = run(["scripts/train.sh", "--dry-run"])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    assert not (tmp_path / "runs").exists()
