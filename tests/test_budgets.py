"""What keeps a project small and cut in two: counts, and who imports whom."""

import ast
from pathlib import Path

import count
import pytest
from baking import BakedProject, Target
from conftest import Bake

TARGETS = [
    Target("cpu", "gloo", "torchrun"),
    Target("gpu", "nccl", "slurm"),
    Target("cpu", "horovod", "horovodrun"),
    Target("cpu", "mpi", "mpirun"),
    Target("tpu", "xla-tpu", "spawn"),
]


@pytest.fixture(params=TARGETS, ids=str)
def project(bake: Bake, request: pytest.FixtureRequest) -> BakedProject:
    """A project without packs."""
    return bake(**request.param._asdict())


def package_of(project: BakedProject) -> Path:
    """Return the folder of a project's package."""
    return project.path / "src" / project.package


def test_nothing_grows_beyond_its_budget(project: BakedProject) -> None:
    found = count.count(project.path)
    assert {name: number for name, number in found.items() if number > count.BUDGETS[name]} == {}


def test_the_runtime_imports_nothing_from_outside_itself(project: BakedProject) -> None:
    package = package_of(project)
    for file in (package / "runtime").rglob("*.py"):
        outside = [
            other
            for other in count.imports_of(file, package)
            if not other.is_relative_to(package / "runtime")
        ]
        assert outside == [], file
        assert project.package not in file.read_text(encoding="utf-8"), file


def test_the_owner_s_files_import_the_runtime_through_its_face(project: BakedProject) -> None:
    package = package_of(project)
    for file in package.rglob("*.py"):
        if "runtime" in file.relative_to(package).parts or "packs" in file.relative_to(package).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert not (node.module or "").startswith("runtime."), f"{file}: {ast.unparse(node)}"


def test_no_module_imports_itself_by_others(project: BakedProject) -> None:
    package = package_of(project)
    modules = {file: count.imports_of(file, package) - {file} for file in package.rglob("*.py")}
    # Take away what imports nothing that is left, until nothing changes.
    while free := {file for file, others in modules.items() if not others & modules.keys()}:
        for file in free:
            del modules[file]
    assert [str(file.relative_to(package)) for file in modules] == []
