"""What a baked project holds for each target, and what it does not hold."""

import ast
import os
import re
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli
from baking import (
    ADDS_NOTHING,
    CONTEXT,
    FULL,
    QUESTIONS,
    ROOT,
    VERSION,
    BakedProject,
    Target,
    assert_parses,
    has_a_version,
    run,
    snapshot,
    tool,
)
from conftest import Bake

NL = "\n"
# The Python of these tests comes first: it has what a dry run imports.
COMMANDS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# The word that starts a training, where it is not the launcher's own name.
STARTS = {
    "torchrun": "my_ddl_project.runtime.process.local",
    "spawn": "python3",
    "slurm": "sbatch",
    "kubernetes": "scripts/manifest.py",
}
# Of runtime/process/: each backend, launcher or hardware has its own.
PARTS = ("launcher", "backend", "exchange", "local", "hardware")
Condition = Callable[[dict[str, Any]], bool]
# Developed in a clone, changed or not, and tested as a copy.
KEEPS_ITS_VERSION = has_a_version(ROOT)


def always(answers: dict[str, Any]) -> bool:
    return True


# The exact set of files: who has which.
FILES: dict[Condition, str] = {
    always: """
        .ddl-template.json .gitattributes .gitignore .pre-commit-config.yaml AGENTS.md README.md noxfile.py pyproject.toml
        configs/default.yaml configs/smoke.yaml scripts/train.sh docs/how-do-i.md docs/your-own-task.md
        src/PKG/__init__.py src/PKG/__main__.py src/PKG/config.py src/PKG/evaluate.py src/PKG/optim.py
        src/PKG/step.py src/PKG/train.py
        src/PKG/task/__init__.py src/PKG/task/data.py src/PKG/task/model.py src/PKG/task/objective.py
        src/PKG/task/settings.py
        src/PKG/runtime/__init__.py src/PKG/runtime/engine.py src/PKG/runtime/handlers.py src/PKG/runtime/settings.py
        src/PKG/runtime/task.py src/PKG/runtime/data/__init__.py src/PKG/runtime/data/loader.py
        src/PKG/runtime/data/worker_server.py
        src/PKG/runtime/state/__init__.py src/PKG/runtime/state/checkpoints.py src/PKG/runtime/state/directory.py
        src/PKG/runtime/state/records.py src/PKG/runtime/state/run.py
        src/PKG/runtime/process/__init__.py src/PKG/runtime/process/collectives.py
        src/PKG/runtime/process/start.py src/PKG/runtime/process/backend.py src/PKG/runtime/process/exchange.py
        src/PKG/runtime/process/hardware.py src/PKG/runtime/process/launcher.py src/PKG/runtime/process/local.py
        src/PKG/runtime/process/supervise.py
        src/PKG/runtime/report/__init__.py src/PKG/runtime/report/doctor.py src/PKG/runtime/report/log.py
        src/PKG/runtime/report/summary.py src/PKG/runtime/report/tracking.py
        tests/conftest.py tests/each_step.py tests/in_float64.py tests/interrupted.py tests/own_steps.py
        tests/test_settings.py tests/test_step.py tests/test_task.py tests/test_training.py
        """,
    lambda answers: KEEPS_ITS_VERSION: VERSION,
    lambda answers: answers["license"] != "none": "LICENSE",
    lambda answers: answers["use_docker"]: "Dockerfile .dockerignore",
    lambda answers: answers["use_github_actions"]: ".github/workflows/ci.yml .github/dependabot.yml",
    lambda answers: answers["use_notebook"]: "notebooks/all_reduce.py notebooks/train.ipynb",
    lambda answers: answers["__launcher"] == "slurm": "scripts/train.sbatch",
    lambda answers: answers["tracker"] != "none": "src/PKG/runtime/report/tracker.py",
    lambda answers: answers["__launcher"] == "kubernetes": """
        scripts/trainjob.yaml scripts/job.yaml scripts/volume.yaml scripts/manifest.py
        """,
    lambda answers: answers["__backend"] == "horovod": "scripts/install_horovod.sh",
    lambda answers: answers["tracker"] == "visdom": "scripts/install_visdom.sh",
    lambda answers: answers["__launcher"] != "spawn": "docs/many-nodes.md",
    lambda answers: answers["use_studies"]: """
        src/PKG/packs/studies/__init__.py src/PKG/packs/studies/ranges.py src/PKG/packs/studies/scaling.py
        src/PKG/packs/studies/search.py src/PKG/packs/studies/seeds.py src/PKG/packs/studies/simulation.py
        src/PKG/packs/studies/sweep.py src/PKG/packs/studies/trials.py tests/test_studies.py docs/studies.md
        """,
    lambda answers: answers["use_strategies"]: """
        src/PKG/packs/strategies/__init__.py src/PKG/packs/strategies/fsdp2.py src/PKG/packs/strategies/local_sgd.py
        src/PKG/packs/strategies/zero1.py tests/test_strategies.py docs/strategies.md
        """,
    lambda answers: answers["use_diagnosis"]: """
        src/PKG/packs/diagnosis/__init__.py src/PKG/packs/diagnosis/check.py src/PKG/packs/diagnosis/network.py
        src/PKG/packs/diagnosis/timing.py tests/test_diagnosis.py docs/diagnosis.md
        """,
    lambda answers: answers["use_export"]: """
        src/PKG/packs/export/__init__.py src/PKG/packs/export/prediction.py src/PKG/packs/export/program.py
        tests/test_export.py docs/export.md
        """,
    lambda answers: answers["use_export"] and answers["task"] not in ("gan", "minimal"): (
        "src/PKG/task/predict.py tests/test_predict.py"
    ),
}
# Its pages are named after them.
PAGES = "docs/{__backend}.md docs/{__launcher}.md"
# Free text stays out of whatever a shell or Python runs.
PLACES = {
    "project_name": ".ddl-template.json README.md",
    "description": ".ddl-template.json README.md pyproject.toml",
    "author_name": ".ddl-template.json LICENSE pyproject.toml",
}
PLACES = {question: f"{VERSION if KEEPS_ITS_VERSION else ''} {names}" for question, names in PLACES.items()}
# Where targets may differ. Every other file is byte-identical over all of them.
OWN_TO_A_TARGET = re.compile(
    r"src/\w+/runtime/process/(hardware|backend|exchange|local|launcher)\.py|scripts/(?!train\.sh).*|docs/.*"
    r"|AGENTS\.md|\.github/.*|pyproject\.toml|README\.md|Dockerfile|\.ddl-template\.json|\.cruft\.json"
)
# Words of a target, and who may say them.
WORDS: dict[str, Callable[[Target], bool]] = {
    r"xla(?!bel)|tpus?\b|pjrt": lambda target: target.hardware == "tpu",
    r"cuda|gpus?\b|nvidia": lambda target: target.hardware == "gpu",
    r"nccl": lambda target: target.backend == "nccl",
    r"gloo": lambda target: target.hardware != "tpu",
    r"horovod|hvd": lambda target: target.backend == "horovod",
    r"mpi4py|open ?mpi|mpich|\bmpi\b": lambda target: target.backend == "mpi" or target.launcher == "mpirun",
    r"mpirun|ompi_|pmi_": lambda target: target.backend == "mpi" or target.launcher == "mpirun",
    r"slurm|srun|sbatch|scancel": lambda target: target.launcher == "slurm",
    # A node of Slurm or Kubernetes is started by torchrun where the backend is one of torch's own.
    r"torchrun|torchelastic|torch\.distributed\.run": lambda target: (
        target.backend in ("gloo", "nccl") and target.launcher in ("torchrun", "slurm", "kubernetes")
    ),
    r"kubectl|kubernetes|kubeflow|trainjob": lambda target: target.launcher == "kubernetes",
    r"spawn": lambda target: target.launcher == "spawn",
}
# What a file of some target may say nevertheless: (target and file, words, why).
EXCEPTIONS = [
    (
        r".*/src/.*\.py",
        (
            r"torch\.cuda\.\w+|\(\"cuda\"|type == \"\w+\"|\"xla\"|\"cuda\"|XLA|SLURM_\w+|PMI_SIZE|OMPI_COMM\w+|TORCHELASTIC\w+"
            r"|torch's spawn|\"spawn\"|torch\.multiprocessing\.spawn( import .*spawn)?|spawn\(_child|CUDA_VISIBLE_DEVICES|torchrun's"
            r"|Slurm's ranks|Horovod|MPI\b|\bmpi\b|mpirun|TPU|GPU"
        ),
        "one source, every device and launcher",
    ),
    (
        r".*/runtime/process/local\.py",
        r"torchrun|torch\.distributed\.run",
        "one way to start processes of this machine",
    ),
    (
        r".*/(ci\.yml|Dockerfile|README\.md)",
        r"no GPU|torch with CUDA|CUDA libraries",
        "torch brings CUDA along",
    ),
    (
        r".*/docs/(how-do-i|your-own-task)\.md|.*/README\.md|.*/AGENTS\.md",
        r".*(torchrun|Slurm|slurm|GPU|gpus|cuda|gloo|spawn|mpirun).*",
        "recipes name what they are for",
    ),
    (
        r".*/tests/.*",
        r"PJRT_DEVICE|NVIDIA_TF32_OVERRIDE|mpirun|MPI|TPU|GPUs?|gpu|spawn|cuda|OMPI\w+",
        "the tests hide the hardware of every target",
    ),
    (r"gpu-horovod-.*/docs/horovod\.md", r"nccl|NCCL", "an option of Horovod's own build"),
    (
        r".*/packs/.*|.*/docs/(strategies|studies|diagnosis)\.md|.*/tests/test_strategies\.py",
        r"gloo|GLOO_SOCKET_IFNAME|nccl|mpi|horovod|xla-tpu|cuda|CUDA",
        "a pack is the same for every target",
    ),
    (
        r".*/notebooks/.*",
        r"gloo|GLOO_SOCKET_IFNAME|NCCL|PyTorch/XLA|PJRT_DEVICE|[GT]PUs?|=gpu|=tpu|\"tpu\\\"|cuda|CUDA|torchrun|spawn|mpi\w*|MPI",
        "it shows collectives with gloo, and what other hardware changes",
    ),
]
if KEEPS_ITS_VERSION:
    EXCEPTIONS.append((r".*/\.cruft\.json", r"[\s\S]+", "the tables of the template"))


def as_written_for(project: BakedProject, name: str) -> str:
    return name.replace(f"src/{project.package}/", "src/PKG/")


def test_each_answer_adds_its_files_and_no_others(projects: list[BakedProject]) -> None:
    for project in projects:
        expected = {name for keep, names in FILES.items() if keep(project.answers) for name in names.split()}
        expected |= {*PAGES.format_map(project.answers).split()}
        assert {as_written_for(project, name) for name in project.files()} == expected, project


def test_every_file_parses(projects: list[BakedProject]) -> None:
    for name, text in {(name, project.read(name)) for project in projects for name in project.files()}:
        assert_parses(name, text)


def test_no_template_language_is_left(projects: list[BakedProject]) -> None:
    # GitHub's ${{ }} and the shell's ${#array[@]} are not ours.
    jinja = re.compile(r"(?<!\$)\{\{|\{%|(?<!\$)\{#|cookiecutter\.(?!json)\w+")
    for project in projects:
        for name in project.files():
            assert not jinja.findall(project.read(name)), f"{name} of {project}"


def test_every_file_reads_as_if_a_person_had_written_it(projects: list[BakedProject]) -> None:
    for project in projects:
        for name in project.files():
            text = project.read(name)
            assert text.strip() and text.endswith("\n") and not text.endswith("\n\n"), f"{name} of {project}"
            fault = re.search(r"\A\n|[ \t]+$|\r|\t|\n\n\n\n", text, re.MULTILINE)
            assert not fault, f"{name} of {project}: {fault}"


def test_shell_scripts_and_nothing_else_can_be_executed(projects: list[BakedProject]) -> None:
    for project in projects:
        executables = {name for name, (_, executable) in snapshot(project.path).items() if executable}
        assert executables == {name for name in project.files() if name.endswith(".sh")}, project
        for name in project.files():
            if name.startswith("scripts/") and not name.endswith((".yaml", ".py")):
                assert project.read(name).startswith(("#!/usr/bin/env bash\n", "#!/bin/sh\n")), (
                    f"{name} of {project}"
                )


def test_dependencies_are_those_of_the_target_and_the_tracker_alone(projects: list[BakedProject]) -> None:
    requirements = CONTEXT["_requirements"]
    for project in projects:
        dependencies = tomli.loads(project.read("pyproject.toml"))["project"]["dependencies"]
        of_task = requirements["task"].get(project.answers["task"], [])
        of_tracker = requirements["tracker"][project.answers["tracker"]]
        of_target = requirements["backend"][project.target.backend]
        assert dependencies == of_target + requirements["common"] + of_task + of_tracker, project


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


def test_a_target_that_ci_does_not_train_has_no_source_of_its_own(full: dict[Target, BakedProject]) -> None:
    trained: set[tuple[str, str]] = set()
    rest: set[tuple[str, str]] = set()
    for target, project in full.items():
        sources = (name for name in project.files() if name.startswith(("src/", "scripts/", "configs/")))
        (rest if target in ADDS_NOTHING else trained).update((name, project.read(name)) for name in sources)
    assert sorted(name for name, _ in rest - trained) == []


def test_the_parts_of_every_target_have_what_is_asked_of_them(full: dict[Target, BakedProject]) -> None:
    for target, project in full.items():
        folder = f"src/{project.package}/runtime/process"
        there = {part: project.read(f"{folder}/{part}.py") for part in PARTS}
        sources = [project.read(name) for name in project.files() if name.endswith(".py")]
        asked = {(part, name) for source in sources for part, name in asked_of_parts(source)}
        assert len(asked) > 30
        missing = {
            f"{part}.{name}"
            for part, name in asked
            if not re.search(rf"^(def )?{name}\b", there[part], re.MULTILINE)
        }
        assert missing == set(), target


@cache
def asked_of_parts(source: str) -> set[tuple[str, str]]:
    """Return what a module takes from the parts that it imports, such as ("transport", "NAME")."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    asked = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr != "__doc__":
            *of, part = ast.unparse(node.value).split(".")
            if part in PARTS and not of and part in imports:
                asked.add((part, node.attr))
    return asked


def test_no_file_speaks_of_another_target(
    full: dict[Target, BakedProject], bare: dict[Target, BakedProject]
) -> None:
    found, needed = set(), set()
    for target, project in [*full.items(), *bare.items()]:
        for name in project.files():
            text = project.read(name)
            for path, phrase, why in EXCEPTIONS:
                if re.fullmatch(path, f"{target}/{name}"):
                    text, count = re.subn(phrase, "", text)
                    needed |= {why} if count else set()
            for word, may_say in WORDS.items():
                if not may_say(target):
                    hits = re.finditer(word, text, re.IGNORECASE)
                    found |= {
                        f"{target}/{name}:{text.count(NL, 0, hit.start()) + 1}: {hit[0]}" for hit in hits
                    }
    assert not found, NL.join(sorted(found))
    assert needed == {why for *_, why in EXCEPTIONS}, "an exception is no longer needed"


def test_only_the_task_s_own_folder_speaks_of_a_task(full: dict[Target, BakedProject]) -> None:
    word = re.compile(
        r"\b((?<!matplotlib\.)images?|pixels?|classes|accuracy|labels?(?!=)|digits|cifar\w*|torchvision)\b",
        re.IGNORECASE,
    )
    found = set()
    for project in full.values():
        for name in project.files():
            if re.match(
                r"src/(?!\w+/(task|runtime|packs)/)|tests/(?!test_task|own_steps|conftest|test_)", name
            ):
                found |= {
                    f"{as_written_for(project, name)}: {hit[0]}" for hit in word.finditer(project.read(name))
                }
    assert not found, NL.join(sorted(found))


def test_tasks_differ_in_their_own_files_alone(bake: Bake) -> None:
    own = re.compile(
        r"src/\w+/task/(?!__init__).*|src/\w+/step\.py|configs/default\.yaml|tests/(test_task|test_step|own_steps)\.py|README\.md|pyproject\.toml|\.ddl-template\.json|\.cruft\.json"
    )
    first, *others = (snapshot(bake(task=task).path) for task in QUESTIONS["task"])
    for other in others:
        differ = {name for name in first.keys() | other.keys() if first.get(name) != other.get(name)}
        assert differ
        assert not [name for name in differ if not own.fullmatch(name)]


def test_a_dry_run_prints_the_command_of_the_launcher(
    full: dict[Target, BakedProject], tmp_path: Path
) -> None:
    for target, project in full.items():
        # A job's settings are written to a file, which other tests are not to find.
        copy = Path(shutil.copytree(project.path, tmp_path / str(target)))
        variables = {
            "PATH": COMMANDS,
            "PYTHONPATH": str(copy / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = run(tool("bash"), "scripts/train.sh", "--dry-run", cwd=copy, env=variables)
        assert done.returncode == 0 and not done.stderr, done.stderr
        command = shlex.split(done.stdout)
        assert STARTS.get(target.launcher, target.launcher) in command, target
        assert target.launcher in ("slurm", "kubernetes") or {"-m", project.package, "train"} <= {*command}, (
            target
        )


def test_a_project_that_is_not_installed_is_told_of_in_one_sentence(full: dict[Target, BakedProject]) -> None:
    project = full[Target("cpu", "gloo", "torchrun")]
    done = run(tool("bash"), "scripts/train.sh", cwd=project.path, env={"PATH": COMMANDS})
    assert (done.returncode, done.stderr.count(NL)) == (1, 1)
    assert done.stderr.startswith("error: ") and "Activate the environment" in done.stderr


@pytest.mark.parametrize(("ends", "comes_back"), [("exit 85", True), ("exit 1", False), ("exit 0", False)])
def test_a_job_of_slurm_comes_back_only_after_a_checkpoint(
    full: dict[Target, BakedProject], ends: str, comes_back: bool, tmp_path: Path
) -> None:
    project = full[Target("cpu", "gloo", "slurm")]
    for name, script in {"srun": ends, "scontrol": f'echo "$*" >>{tmp_path}/said; echo node1'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    # A job before this one had stopped, and left its mark.
    (tmp_path / "stopped").touch()
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS_PER_NODE": "1",
    }
    job |= {"SLURM_CPUS_ON_NODE": "1", "RUN_DIR": str(tmp_path)}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("bash", "scripts/train.sbatch", cwd=project.path, env={**os.environ, **job, "PATH": path})
    assert done.returncode == (85 if comes_back else int(ends.split()[-1])), done.stderr
    assert ("requeue 7\n" in (tmp_path / "said").read_text()) == comes_back


def test_everything_that_the_dockerfile_copies_is_there(projects: list[BakedProject]) -> None:
    for project in projects:
        if project.answers["use_docker"]:
            kept = re.findall(r"^!(.+)", project.read(".dockerignore"), re.MULTILINE)
            copied = re.findall(r"^COPY (?!--from)(.+) \S+$", project.read("Dockerfile"), re.MULTILINE)
            for name in " ".join(copied).split():
                # Not every project has a license.
                there = (project.path / name).exists() or name == "LICENSE*"
                assert there and name.removesuffix("*") in kept, f"{name} of {project}"


@pytest.mark.parametrize(
    "question", ["project_name", "project_slug", "package_name", "description", "author_name"]
)
def test_a_name_appears_where_it_is_meant_and_changes_nothing_else(bake: Bake, question: str) -> None:
    def written(name: str) -> dict[str, str]:
        # The names that follow from another stay as they are.
        names = {"project_slug": "my-ddl-project", "package_name": "my_ddl_project", question: name}
        project = bake(**FULL, **names)
        return {file.replace(name, "NAME"): project.read(file) for file in project.files()}

    quokka, wombat = written("quokka"), written("wombat")
    assert {file: text.replace("quokka", "NAME") for file, text in quokka.items()} == {
        file: text.replace("wombat", "NAME") for file, text in wombat.items()
    }
    if question in PLACES:
        assert {file for file, text in quokka.items() if "quokka" in text} == set(PLACES[question].split())
