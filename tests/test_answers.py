"""Which answers go together, what is refused, and how cookiecutter and cruft are called for it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from baking import COMBINATIONS, CONTEXT, QUESTIONS, ROOT, SUPPORT, TARGETS, Target, run, snapshot
from conftest import Bake, Refuse, Shell, commit_all, copy_template, git, the_sentence

# The table of the design, written out a second time: a changed cookiecutter.json must be meant.
EVERYWHERE = ["torchrun", "spawn", "slurm", "mpirun", "kubernetes"]
DESIGN = {
    "gloo": (["cpu", "gpu"], EVERYWHERE),
    "nccl": (["gpu"], EVERYWHERE),
    "mpi": (["cpu", "gpu"], ["mpirun", "slurm"]),
    "horovod": (["cpu", "gpu"], ["horovodrun", "spawn", "mpirun", "slurm"]),
    "xla-tpu": (["tpu"], ["spawn"]),
}
REFUSED = [combination for combination in COMBINATIONS if combination not in TARGETS]
# More answers than the question offers, because the last three of a sentence are read back from it.
CHOICE = re.compile(r"(.+), so (.+) cannot work: choose hardware=(\S+) backend=(\S+) launcher=(\S+)")


def test_the_support_table_is_the_one_of_the_design() -> None:
    assert {backend: (row["hardware"], row["launchers"]) for backend, row in SUPPORT.items()} == DESIGN
    assert len(set(TARGETS)) == 28
    assert len(REFUSED) == 90 - 28


def test_every_question_and_every_choice_has_a_label() -> None:
    labels = CONTEXT["__prompts__"]
    assert labels.keys() == QUESTIONS.keys()
    for question, label in labels.items():
        if isinstance(label, dict):
            assert label.keys() == {"__prompt__", *QUESTIONS[question]}, question


@pytest.mark.parametrize("backend", SUPPORT)
def test_the_reasons_of_a_backend_are_those_that_its_row_needs(backend: str) -> None:
    row = SUPPORT[backend]
    others = {target.hardware for target in COMBINATIONS} | {target.launcher for target in COMBINATIONS}
    assert row["refused"].keys() == others - {*row["hardware"], *row["launchers"]}


@pytest.mark.parametrize("asked", REFUSED, ids=str)
def test_a_combination_outside_the_table_is_refused_with_the_nearest_that_works(
    asked: Target, refuse: Refuse
) -> None:
    found = CHOICE.fullmatch(refuse(**asked._asdict()))
    assert found
    why, repeated, *choice = found.groups()
    row = SUPPORT[asked.backend]
    culprit = asked.hardware if asked.hardware not in row["hardware"] else asked.launcher
    assert why == row["refused"][culprit]["why"]
    assert repeated == f"hardware={asked.hardware} backend={asked.backend} launcher={asked.launcher}"
    assert Target(*choice) in TARGETS
    assert choice[0] == asked.hardware, "a user can change a setting, not the machine"
    assert choice[2] in (asked.launcher, SUPPORT[choice[1]]["launchers"][0]), (
        "a new launcher is the default one"
    )
    # The most that any target for this hardware keeps; where two answers are wrong, less may be kept.
    kept = {target: len(set(asked) & set(target)) for target in TARGETS if target.hardware == asked.hardware}
    two_are_wrong = asked.hardware not in row["hardware"] and asked.launcher not in row["launchers"]
    assert kept[Target(*choice)] == max(kept.values()) or two_are_wrong


@pytest.mark.parametrize(
    ("answers", "target"),
    [
        ({}, "cpu-gloo-torchrun"),
        ({"hardware": "gpu"}, "gpu-nccl-torchrun"),
        ({"hardware": "tpu"}, "tpu-xla-tpu-spawn"),
        ({"hardware": "gpu", "backend": "gloo"}, "gpu-gloo-torchrun"),
        ({"backend": "mpi"}, "cpu-mpi-mpirun"),
        ({"backend": "horovod"}, "cpu-horovod-horovodrun"),
        ({"launcher": "slurm"}, "cpu-gloo-slurm"),
        ({"hardware": "gpu", "launcher": "spawn"}, "gpu-nccl-spawn"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()) or "defaults",
)
def test_auto_takes_the_best_for_the_hardware(bake: Bake, answers: dict[str, str], target: str) -> None:
    project = bake(**answers)
    assert str(project.target) == target
    # Stored is what was asked, as cookiecutter itself would replay it.
    stored = json.loads(project.read(".ddl-template.json"))["default_context"]
    asked = {"hardware": "cpu", "backend": "auto", "launcher": "auto"} | answers
    assert {question: stored[question] for question in asked} == asked


@pytest.mark.parametrize(
    ("answers", "choice"),
    [
        ({"launcher": "horovodrun"}, "hardware=cpu backend=horovod launcher=horovodrun"),
        ({"hardware": "tpu", "launcher": "slurm"}, "hardware=tpu backend=xla-tpu launcher=spawn"),
        ({"hardware": "gpu", "backend": "xla-tpu"}, "hardware=gpu backend=nccl launcher=spawn"),
    ],
)
def test_auto_is_refused_for_what_it_stands_for(refuse: Refuse, answers: dict[str, str], choice: str) -> None:
    assert refuse(**answers).endswith(f"choose {choice}")


def test_a_mistyped_question_is_refused_by_the_tests_themselves(bake: Bake) -> None:
    with pytest.raises(AssertionError, match="hardwear"):
        bake(hardwear="gpu")


def test_the_settings_of_the_machine_s_user_do_not_leak_into_a_bake(
    bake: Bake, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rc").write_text("default_context: {project_name: Leak, hardware: gpu}\n")
    monkeypatch.setenv("COOKIECUTTER_CONFIG", str(tmp_path / "rc"))
    assert bake(author_name="Nobody").answers["hardware"] == "cpu"
    shell("cookiecutter", ROOT, "--no-input")
    assert not (tmp_path / "leak").exists()


# As a user calls it -------------------------------------------------------------------------------------


def test_the_command_line_bakes_and_says_the_next_two_commands(shell: Shell, tmp_path: Path) -> None:
    done = shell("cookiecutter", ROOT, "--no-input", "hardware=gpu", "launcher=slurm", "use_docker=no")
    assert done.returncode == 0, done.stderr
    assert "(gpu, nccl, slurm)" in done.stdout
    commands = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert commands == ['cd my-ddl-project && python3 -m pip install -e ".[dev]"', "scripts/train.sh"]
    assert (tmp_path / "my-ddl-project/scripts/train.sbatch").is_file()
    assert not (tmp_path / "my-ddl-project/Dockerfile").exists()


@pytest.mark.parametrize("asked", [REFUSED[0], REFUSED[-1], Target("gpu", "mpi", "kubernetes")], ids=str)
def test_the_command_line_refuses_with_one_sentence_and_exit_1(
    shell: Shell, tmp_path: Path, asked: Target
) -> None:
    answers = [f"{key}={value}" for key, value in asked._asdict().items()]
    done = shell("cookiecutter", ROOT, "--no-input", *answers)
    assert done.returncode == 1
    assert CHOICE.fullmatch(the_sentence(done.stderr))
    assert not list(tmp_path.iterdir())


def test_answers_typed_at_the_prompts_make_the_same_project_as_answers_given_at_once(
    shell: Shell, bake: Bake, tmp_path: Path
) -> None:
    typed = {question: "" for question in QUESTIONS} | {"hardware": "2", "launcher": "4", "use_notebook": "y"}
    done = shell("cookiecutter", ROOT, stdin="\n".join(typed.values()) + "\n")
    assert done.returncode == 0, done.stdout + done.stderr
    project = bake(hardware="gpu", launcher="slurm", use_notebook=True)
    assert snapshot(tmp_path / "my-ddl-project") == snapshot(project.path)


def test_a_git_url_renders_what_the_working_tree_renders(
    shell: Shell, bake: Bake, template_repository: Path, tmp_path: Path
) -> None:
    done = shell("cookiecutter", template_repository.as_uri(), "--no-input", "backend=horovod")
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(tmp_path / "my-ddl-project") == snapshot(bake(backend="horovod").path)


def test_a_replay_and_the_stored_answers_re_create_the_project_byte_for_byte(
    shell: Shell, tmp_path: Path
) -> None:
    answers = [
        "project_name=Re Played",
        'author_name=Ann "The Möwe" O\'Neill',
        "backend=mpi",
        "use_docker=no",
    ]
    assert shell("cookiecutter", ROOT, "--no-input", "-o", "first", *answers).returncode == 0
    first = tmp_path / "first/re-played"
    stored = json.loads((first / ".ddl-template.json").read_text())
    assert stored["version"] == CONTEXT["_template_version"]
    for way in (["--replay"], ["--no-input", "--config-file", str(first / ".ddl-template.json")]):
        again = tmp_path / way[0].strip("-")
        done = shell("cookiecutter", ROOT, "-o", again, *way)
        assert done.returncode == 0, done.stdout + done.stderr
        assert snapshot(again / "re-played") == snapshot(first)


def test_cruft_creates_checks_and_sees_no_difference(
    shell: Shell, template_repository: Path, tmp_path: Path
) -> None:
    answers = json.dumps({"project_name": "Cru Ft", "hardware": "gpu", "use_docker": False})
    done = shell("cruft", "create", "--no-input", "--extra-context", answers, template_repository)
    assert done.returncode == 0, done.stdout + done.stderr
    project = tmp_path / "cru-ft"
    assert not (project / "Dockerfile").exists()
    for command in (["check"], ["diff", "--exit-code"]):
        done = shell("cruft", *command, cwd=project)
        assert done.returncode == 0, done.stdout + done.stderr
    (project / "README.md").write_text("mine\n")
    assert shell("cruft", "diff", "--exit-code", cwd=project).returncode == 1


# A version without docs/speed.md.
OLDER = "f5f07c2"


@pytest.fixture
def older_and_newer(tmp_path: Path, environment: dict[str, str]) -> tuple[Path, str]:
    """A repository with an older version of the template and this one, and the commit of the older one."""
    repository = tmp_path / "ddl-template.git"
    repository.mkdir()
    archive = tmp_path / "older.tar"
    if run("git", "archive", "-o", archive, OLDER, cwd=ROOT).returncode == 0:
        assert run("tar", "-xf", archive, cwd=repository).returncode == 0
    else:
        # A copy without history: an older version is made up.
        copy_template(repository)
        (project,) = repository.glob("{{*}}")
        for path in (project / "README.md", *project.glob("src/*/training.py")):
            path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-3]))
        (project / "docs/speed.md").unlink()
    git(repository, environment, "init", "-q", "-b", "main")
    older = commit_all(repository, environment)
    for path in [repository / "hooks", *repository.glob("{{*}}")]:
        shutil.rmtree(path)
    copy_template(repository)
    commit_all(repository, environment)
    return repository, older


def edit(file: Path, old: str, new: str) -> None:
    """Change the one place in a file that reads ``old``, as a user would."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} in {file.name}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_an_update_to_a_newer_template_keeps_what_the_user_has_edited(
    shell: Shell, older_and_newer: tuple[Path, str], environment: dict[str, str], tmp_path: Path
) -> None:
    repository, older = older_and_newer
    done = shell("cruft", "create", "--no-input", "--checkout", older, repository)
    assert done.returncode == 0, done.stdout + done.stderr
    project = tmp_path / "my-ddl-project"
    assert not (project / "docs/speed.md").exists()
    edit(project / "configs/default.yaml", "batch_size: 64", "batch_size: 32")
    edit(project / "README.md", "# My DDL Project\n", "# My DDL Project\n\nMeasured on our own images.\n")
    (project / "src/my_ddl_project/mine.py").write_text("MINE = True\n")
    git(project, environment, "init", "-q")
    commit_all(project, environment)
    done = shell("cruft", "update", "-y", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batch_size: 32" in (project / "configs/default.yaml").read_text()
    assert "Measured on our own images.\n" in (project / "README.md").read_text()
    assert (project / "src/my_ddl_project/mine.py").read_text() == "MINE = True\n"
    assert (project / "docs/speed.md").is_file()
    assert not git(project, environment, "diff", "--name-only", "--diff-filter=U"), "conflicts"
    assert not list(project.rglob("*.rej"))
    assert shell("cruft", "check", cwd=project).returncode == 0


def test_an_update_with_another_launcher_makes_the_project_for_it_and_keeps_edits(
    shell: Shell, bake: Bake, template_repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = shell("cruft", "create", "--no-input", template_repository)
    assert done.returncode == 0, done.stdout + done.stderr
    project = tmp_path / "my-ddl-project"
    git(project, environment, "init", "-q")
    edit(project / "README.md", "# My DDL Project\n", "# My DDL Project\n\nMeasured on our own images.\n")
    commit_all(project, environment)
    variables = json.dumps({"launcher": "slurm"})
    done = shell("cruft", "update", "-y", "--variables-to-update", variables, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    edit(project / "README.md", "\nMeasured on our own images.\n", "")
    (project / ".cruft.json").unlink()
    assert snapshot(project) == snapshot(bake(launcher="slurm").path)
