"""What a baked project holds for each target, and what it does not hold."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import tomli
from baking import CONTEXT, FULL, BakedProject, Target, assert_files_parse, snapshot
from conftest import Bake

Condition = Callable[[dict[str, Any]], bool]


def always(answers: dict[str, Any]) -> bool:
    return True


# The exact set of files: who has which.
FILES: dict[Condition, str] = {
    always: """
        .ddl-template.json .gitignore .pre-commit-config.yaml README.md noxfile.py pyproject.toml
        configs/default.yaml configs/smoke.yaml
        scripts/train.sh
        src/PKG/__init__.py src/PKG/__main__.py src/PKG/config.py src/PKG/data.py src/PKG/distributed.py
        src/PKG/doctor.py src/PKG/engines.py src/PKG/handlers.py src/PKG/model.py src/PKG/shards.py
        src/PKG/training.py
        tests/conftest.py
        """,
    lambda answers: answers["license"] != "none": "LICENSE",
    lambda answers: answers["use_docker"]: "Dockerfile .dockerignore",
    lambda answers: answers["use_github_actions"]: ".github/workflows/ci.yml",
    lambda answers: answers["use_notebook"]: "notebooks/train.ipynb",
    lambda answers: answers["__launcher"] == "slurm": "scripts/train.sbatch",
    lambda answers: answers["__launcher"] == "kubernetes": "scripts/trainjob.yaml scripts/job.yaml",
    lambda answers: answers["__backend"] == "horovod": "scripts/install_horovod.sh",
}
# Free text stays out of whatever a shell or Python runs.
PLACES = {
    "project_name": ".ddl-template.json README.md",
    "description": ".ddl-template.json README.md pyproject.toml src/my_ddl_project/__init__.py",
    "author_name": ".ddl-template.json LICENSE pyproject.toml",
}
# Where targets may differ. Every other file is byte-identical over all of them.
OWN_TO_A_TARGET = re.compile(
    r"src/\w+/distributed\.py|(scripts|configs|\.github)/.*|pyproject\.toml|README\.md|Dockerfile|\.ddl-template\.json"
)
# Words of a target, and who may say them in a file that differs between targets.
WORDS: dict[str, Callable[[Target], bool]] = {
    r"xla(?!bel)|tpus?\b|pjrt": lambda target: target.hardware == "tpu",
    r"cuda|gpus?\b|nvidia": lambda target: target.hardware == "gpu",
    r"nccl": lambda target: target.backend == "nccl",
    r"gloo": lambda target: target.backend in ("gloo", "nccl", "horovod"),
    r"horovod|hvd": lambda target: target.backend == "horovod",
    r"mpi4py|openmpi|open mpi|mpich|\bmpi\b": lambda target: "mpi" in (target.backend, target.launcher[:3]),
    r"mpirun|ompi_|pmi_": lambda target: target.launcher == "mpirun" or target.backend == "mpi",
    r"slurm|srun|sbatch|scancel": lambda target: target.launcher == "slurm",
    r"torchrun|torch\.distributed\.run": lambda target: target.launcher in ("torchrun", "kubernetes"),
    r"kubectl|kubernetes|kubeflow|trainjob": lambda target: target.launcher == "kubernetes",
    r"spawn": lambda target: target.launcher == "spawn",
}
# (word, file, sentence): what may be said about a target elsewhere, and why.
EXCEPTIONS: list[tuple[str, str, str]] = []


def as_written_for(project: BakedProject, name: str) -> str:
    return name.replace(f"src/{project.package}/", "src/PKG/")


def test_each_answer_adds_its_files_and_no_others(projects: list[BakedProject]) -> None:
    for project in projects:
        expected = {name for keep, names in FILES.items() if keep(project.answers) for name in names.split()}
        assert {as_written_for(project, name) for name in project.files()} == expected, project


def test_every_file_parses(projects: list[BakedProject]) -> None:
    for project in projects:
        assert_files_parse(project)


def test_no_template_language_is_left(projects: list[BakedProject]) -> None:
    # GitHub's ${{ }} and the shell's ${#array[@]} are not ours.
    jinja = re.compile(r"(?<!\$)\{\{|\{%|(?<!\$)\{#|[^\n]*cookiecutter\.(?!json)\w+")
    for project in projects:
        for name in project.files():
            assert not jinja.findall(project.read(name)), f"{name} of {project}"


def test_every_file_reads_as_if_a_person_had_written_it(projects: list[BakedProject]) -> None:
    for project in projects:
        for name in project.files():
            text = project.read(name)
            assert text.strip() and text.endswith("\n") and not text.endswith("\n\n"), f"{name} of {project}"
            fault = re.search(r"^\n|[ \t]$|\r|\t|\n\n\n\n", text.removesuffix("\n"), re.MULTILINE)
            assert not fault or fault.start(), f"{name} of {project}"


def test_shell_scripts_and_nothing_else_can_be_executed(projects: list[BakedProject]) -> None:
    for project in projects:
        executables = {name for name, (_, executable) in snapshot(project.path).items() if executable}
        assert executables == {name for name in project.files() if name.endswith(".sh")}, project
        for name in project.files():
            if name.startswith("scripts/") and not name.endswith(".yaml"):
                assert project.read(name).startswith("#!/usr/bin/env bash\n"), f"{name} of {project}"


def test_dependencies_are_those_of_the_target_alone(full: dict[Target, BakedProject]) -> None:
    requirements = CONTEXT["_requirements"]
    for target, project in full.items():
        dependencies = tomli.loads(project.read("pyproject.toml"))["project"]["dependencies"]
        assert dependencies == requirements[target.backend] + requirements["common"]


def test_files_that_are_not_a_target_s_own_are_identical_over_all_targets(
    full: dict[Target, BakedProject],
) -> None:
    versions = defaultdict(set)
    for project in full.values():
        for name, content in snapshot(project.path).items():
            if not OWN_TO_A_TARGET.fullmatch(name):
                versions[name].add(content)
    assert [name for name, contents in versions.items() if len(contents) > 1] == []
    assert len(versions) > 15, "most files are shared"


def test_no_file_speaks_of_another_target(full: dict[Target, BakedProject]) -> None:
    found = []
    for target, project in full.items():
        for name in project.files():
            text = project.read(name)
            for path, phrase, _ in EXCEPTIONS:
                if re.fullmatch(path, as_written_for(project, name)):
                    text = re.sub(phrase, "", text)
            for word, may_say in WORDS.items():
                if not may_say(target):
                    hits = re.findall(rf".*(?:{word}).*", text, re.IGNORECASE)
                    found += [f"{target} {name}: {hit.strip()}" for hit in hits]
    assert not found, "\n".join(sorted(set(found)))


def test_every_exception_is_needed(full: dict[Target, BakedProject]) -> None:
    texts = {
        (as_written_for(project, name), project.read(name))
        for project in full.values()
        for name in project.files()
    }
    for path, phrase, _ in EXCEPTIONS:
        assert any(re.fullmatch(path, name) and re.search(phrase, text) for name, text in texts), (
            path,
            phrase,
        )


@pytest.mark.parametrize(
    "question", ["project_name", "project_slug", "package_name", "description", "author_name"]
)
def test_a_name_appears_where_it_is_meant_and_changes_nothing_else(bake: Bake, question: str) -> None:
    def written(name: str) -> dict[str, str]:
        project = bake(**FULL, **{question: name})
        return {file.replace(name, "NAME"): project.read(file) for file in project.files()}

    quokka, wombat = written("quokka"), written("wombat")
    assert {file: text.replace("quokka", "NAME") for file, text in quokka.items()} == {
        file: text.replace("wombat", "NAME") for file, text in wombat.items()
    }
    if question in PLACES:
        assert {file for file, text in quokka.items() if "quokka" in text} == set(PLACES[question].split())
