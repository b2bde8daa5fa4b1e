"""Which answers go together, what is refused, and how a project is updated and gets other answers."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from baking import (
    COMBINATIONS,
    CONTEXT,
    QUESTIONS,
    ROOT,
    SUPPORT,
    TARGETS,
    VERSION,
    Target,
    rendered,
    run,
    snapshot,
)
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
# What nox makes of a session that refuses.
ABORTED = re.compile(
    r"^nox > Session update aborted: (.+?)\.?(?: \(took .+\))?\.?$", re.MULTILINE | re.DOTALL
)
HERE = Target("cpu", "gloo", "torchrun")
THERE = Target("gpu", "nccl", "slurm")
Update = Callable[..., CompletedProcess[str]]


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
    assert rendered(tmp_path / "my-ddl-project") == rendered(project.path)


def test_a_git_url_renders_what_the_working_tree_renders(
    shell: Shell, bake: Bake, template_repository: Path, tmp_path: Path
) -> None:
    done = shell("cookiecutter", template_repository.as_uri(), "--no-input", "backend=horovod")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rendered(tmp_path / "my-ddl-project") == rendered(bake(backend="horovod").path)


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


@pytest.fixture
def older_and_newer(tmp_path: Path, environment: dict[str, str]) -> tuple[Path, str]:
    """A repository with an older version of the template and this one, and the commit of the older one."""
    repository = tmp_path / "ddl-template.git"
    repository.mkdir()
    copy_template(repository)
    (project,) = repository.glob("{{*}}")
    for path in (project / "README.md", *project.glob("src/*/train.py")):
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-3]))
    (project / "docs/how-do-i.md").unlink()
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
    assert not (project / "docs/how-do-i.md").exists()
    # First as it was rendered, as docs/how-do-i.md says: git can merge what stands next to a change of ours.
    git(project, environment, "init", "-q")
    commit_all(project, environment)
    edit(project / "configs/default.yaml", "batch_size: 64", "batch_size: 32")
    edit(project / "README.md", "# My DDL Project\n", "# My DDL Project\n\nMeasured on our own images.\n")
    (project / "src/my_ddl_project/mine.py").write_text("MINE = True\n")
    commit_all(project, environment)
    done = shell("cruft", "update", "-y", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batch_size: 32" in (project / "configs/default.yaml").read_text()
    assert "Measured on our own images.\n" in (project / "README.md").read_text()
    assert (project / "src/my_ddl_project/mine.py").read_text() == "MINE = True\n"
    assert (project / "docs/how-do-i.md").is_file()
    assert not git(project, environment, "diff", "--name-only", "--diff-filter=U"), "conflicts"
    assert not list(project.rglob("*.rej"))
    assert shell("cruft", "check", cwd=project).returncode == 0


def version_of(project: Path) -> dict[str, Any]:
    version: dict[str, Any] = json.loads((project / VERSION).read_text(encoding="utf-8"))
    return version


def test_a_project_keeps_the_version_that_rendered_it_as_cruft_keeps_it(
    shell: Shell, template_repository: Path, tmp_path: Path
) -> None:
    done = shell("cookiecutter", template_repository, "--no-input", "-o", "plain", "author_name=Möwe")
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.dumps({"author_name": "Möwe"})
    done = shell(
        "cruft", "create", "-y", "--extra-context", answers, "--output-dir", "cruft", template_repository
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plain, cruft = tmp_path / "plain/my-ddl-project", tmp_path / "cruft/my-ddl-project"
    assert snapshot(plain) == snapshot(cruft)
    for command in (["check"], ["diff", "--exit-code"]):
        done = shell("cruft", *command, cwd=plain)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_version_names_the_url_that_was_cloned_without_its_password(
    shell: Shell, template_repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    commit = git(template_repository, environment, "rev-parse", "HEAD").strip()
    config = {
        "cookiecutters_dir": str(tmp_path / "clones"),
        "abbreviations": {"here": f"file://{template_repository.parent}/{{0}}.git"},
    }
    (tmp_path / "rc").write_text(json.dumps(config))
    options = ("--no-input", "--config-file", "rc", "--overwrite-if-exists")
    done = shell("cookiecutter", "here:ddl-template", *options, "--checkout", "main")
    assert done.returncode == 0, done.stdout + done.stderr
    version = version_of(tmp_path / "my-ddl-project")
    assert version["template"] == template_repository.as_uri()
    assert (version["commit"], version["checkout"]) == (commit, "main")
    clone = tmp_path / "clones/ddl-template"
    git(clone, environment, "remote", "set-url", "origin", "https://ann:secret@example.org/ddl-template.git")
    done = shell("cookiecutter", "ddl-template", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert version_of(tmp_path / "my-ddl-project")["template"] == "https://example.org/ddl-template.git"
    assert "secret" not in (tmp_path / "my-ddl-project" / VERSION).read_text()


def test_the_path_of_a_template_may_be_relative(
    template_repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "template").symlink_to(template_repository)
    bake = f"cd here && {sys.executable} -m cookiecutter ../template --no-input -o ../far/away"
    done = run("sh", "-c", bake, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert version_of(tmp_path / "far/away/my-ddl-project")["template"] == str(template_repository)


def test_a_project_names_no_version_that_did_not_render_it(
    shell: Shell, environment: dict[str, str], tmp_path: Path
) -> None:
    template = tmp_path / "template"
    template.mkdir()
    copy_template(template)

    def has_a_version() -> bool:
        done = shell("cookiecutter", template, "--no-input", "--overwrite-if-exists")
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return (tmp_path / "my-ddl-project" / VERSION).exists()

    assert not has_a_version(), "no repository"
    git(template, environment, "init", "-q")
    assert not has_a_version(), "no commit"
    commit_all(template, environment)
    assert has_a_version()
    (template / "notes.txt").write_text("not rendered\n")
    assert has_a_version()
    (project,) = template.glob("{{*}}")
    (project / "notes.txt").write_text("rendered\n")
    assert not has_a_version(), "a change, and the file of an earlier bake is gone"
    shutil.rmtree(template / ".git")
    git(tmp_path, environment, "init", "-q")
    commit_all(tmp_path, environment)
    assert not has_a_version(), "the repository of something else"


# The session update of a project -------------------------------------------------------------------------------


@pytest.fixture
def update(environment: dict[str, str], tmp_path: Path) -> Update:
    """Call it as a user would, who has told pip and uv where packages are."""
    packages = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    # nox points it at the environment of the tests.
    packages.pop("UV_PYTHON", None)

    def update(project: Path, *answers: str) -> CompletedProcess[str]:
        nox = (sys.executable, "-m", "nox", "--envdir", str(tmp_path / "nox"), "-s", "update", "--")
        variables = environment | packages | {"PYTHONDONTWRITEBYTECODE": "1"}
        return run(*nox, *answers, cwd=project, env=variables)

    return update


def committed(shell: Shell, template: Path, environment: dict[str, str], folder: Path) -> Path:
    """A project that is rendered by cookiecutter alone, and committed as it is."""
    answers = [f"{question}={answer}" for question, answer in HERE._asdict().items()]
    done = shell("cookiecutter", template, "--no-input", "-o", folder, *answers)
    assert done.returncode == 0, done.stdout + done.stderr
    project = folder / "my-ddl-project"
    git(project, environment, "init", "-q")
    commit_all(project, environment)
    return project


def become(target: Target) -> list[str]:
    return [f"{question}={answer}" for question, answer in target._asdict().items()]


def test_a_project_becomes_another_target_and_comes_back_with_its_edits(
    shell: Shell,
    bake: Bake,
    update: Update,
    template_repository: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    def edit_as_a_user(project: Path) -> None:
        package = project / "src/my_ddl_project"
        edit(project / "README.md", "# My DDL Project\n", "# My DDL Project\n\nMeasured on our own images.\n")
        edit(package / "train.py", '"""A training run, top down.', '"""Our run, top down.')
        edit(package / "task/objective.py", 'SCORE = "accuracy"', 'SCORE = "loss"')
        (package / "task/mine.py").write_text("MINE = True\n")

    project = committed(shell, template_repository, environment, tmp_path)
    edit_as_a_user(project)
    commit_all(project, environment)
    start = snapshot(project)

    done = update(project, *become(THERE))
    assert done.returncode == 0 and "Updated: " in done.stderr, done.stderr
    fresh = Path(shutil.copytree(bake(**THERE._asdict()).path, tmp_path / "fresh"))
    edit_as_a_user(fresh)
    assert rendered(project) == rendered(fresh)
    commit_all(project, environment)

    done = update(project)
    assert done.returncode == 0 and "This is the newest version" in done.stderr, done.stderr
    assert not git(project, environment, "status", "--porcelain")

    done = update(project, *become(HERE))
    assert done.returncode == 0, done.stderr
    assert snapshot(project) == start


def test_the_session_updates_a_project_from_one_version_to_the_next(
    shell: Shell,
    update: Update,
    template_repository: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    template = tmp_path / "template"
    git(tmp_path, environment, "clone", "-q", str(template_repository), str(template))
    project = committed(shell, template, environment, tmp_path)
    edit(project / "configs/default.yaml", "batch_size: 64", "batch_size: 32")
    commit_all(project, environment)
    (folder,) = template.glob("{{*}}")
    (folder / "docs/news.md").write_text("# News\n")
    commit_all(template, environment)
    git(template, environment, "tag", "v1")
    (folder / "docs/news.md").write_text("# More news\n")
    newest = commit_all(template, environment)

    for arguments, news in ((["checkout=v1"], "# News\n"), ([], "# More news\n")):
        done = update(project, *arguments)
        assert done.returncode == 0, done.stderr
        assert (project / "docs/news.md").read_text() == news
        assert "batch_size: 32" in (project / "configs/default.yaml").read_text()
        commit_all(project, environment)
    assert version_of(project)["commit"] == newest


def test_an_update_that_cannot_be_is_refused_in_one_sentence_and_changes_nothing(
    shell: Shell,
    update: Update,
    template_repository: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    project = committed(shell, template_repository, environment, tmp_path)

    def refused(*answers: str) -> str:
        before = (
            snapshot(project),
            (project / ".git").exists() and git(project, environment, "status", "--short"),
        )
        done = update(project, *answers)
        assert done.returncode == 1, done.stderr
        (sentence,) = ABORTED.findall(done.stderr)
        assert "\n" not in sentence and "Traceback" not in done.stderr, done.stderr
        after = (
            snapshot(project),
            (project / ".git").exists() and git(project, environment, "status", "--short"),
        )
        assert before == after
        return str(sentence)

    assert refused("colour=red").startswith(
        "colour is not a question of the template: choose from project_name, "
    )
    assert "'slurm'" in refused("launcher=slrm")
    assert CHOICE.fullmatch(refused("hardware=cpu", "backend=nccl"))
    assert "v7" in refused("checkout=v7")
    (project / "notes.txt").write_text("mine\n")
    assert refused("launcher=slurm").startswith("There are changes that are not committed: commit or stash")
    shutil.rmtree(project / ".git")
    assert refused("launcher=slurm").startswith("No git repository holds this project: git init")
    (project / VERSION).unlink()
    assert refused("launcher=slurm").startswith(
        f"There is no {VERSION}, which names the template: docs/how-do-i.md"
    )


@pytest.mark.parametrize("edited", ["one file", "files that go and come"])
def test_the_files_with_conflicts_are_named_and_the_update_can_be_taken_back(
    shell: Shell,
    update: Update,
    template_repository: Path,
    environment: dict[str, str],
    tmp_path: Path,
    edited: str,
) -> None:
    project = committed(shell, template_repository, environment, tmp_path)
    launcher = project / "src/my_ddl_project/runtime/process/launcher.py"
    edit(launcher, 'NAME = "torchrun"', 'NAME = "mine"')
    conflicts = ["src/my_ddl_project/runtime/process/launcher.py"]
    if edited != "one file":
        with (project / "docs/torchrun.md").open("a") as page:
            page.write("Ours starts by itself.\n")
        (project / "scripts/train.sbatch").write_text("mine\n")
        conflicts = ["docs/torchrun.md", "scripts/train.sbatch", *conflicts]
    commit_all(project, environment)
    before = snapshot(project)

    done = update(project, *become(THERE))
    assert done.returncode == 1
    (sentence,) = ABORTED.findall(done.stderr)
    assert (
        sentence
        == f"Updated, but your edits conflict in {', '.join(conflicts)}: docs/how-do-i.md shows how to resolve them"
    )
    # As the page says, in its table.
    if edited == "one file":
        assert '<<<<<<< ours\nNAME = "mine"\n' in launcher.read_text()
    else:
        assert 'NAME = "mine"\n' in launcher.read_text()
        assert '+NAME = "slurm"' in launcher.with_suffix(".py.rej").read_text()
        assert (project / "docs/torchrun.md").read_text().endswith("Ours starts by itself.\n")
        assert (project / "scripts/train.sbatch").read_text() == "mine\n"
    assert (project / "docs/slurm.md").is_file()
    git(project, environment, "reset", "--hard")
    git(project, environment, "clean", "-fd")
    assert snapshot(project) == before


def test_a_project_without_its_version_gets_it_by_the_command_of_its_page(
    shell: Shell, template_repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    project = committed(shell, template_repository, environment, tmp_path)
    version = version_of(project)
    (project / VERSION).unlink()
    (command,) = re.findall(r"^cruft (link .+)$", (project / "docs/how-do-i.md").read_text(), re.MULTILINE)
    _, url, _, tag, *options = command.split()
    assert tag == f"v{CONTEXT['_template_version']}" and url.endswith(
        CONTEXT["_template_source"].removeprefix("gh:")
    )
    done = shell("cruft", "link", template_repository, "--checkout", "main", *options, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert version_of(project) == version | {"checkout": "main"}
