"""Packs: rendered alone, together or not at all, and everything else without them."""

import re
import shutil
from pathlib import Path

import pytest
from baking import PACKS, BakedProject, rendered, tool, without_torch
from conftest import Bake, Check, Copy
from count import imports_of
from reading import unresolved

SETS = [[], *([pack] for pack in PACKS), PACKS]


@pytest.fixture(params=SETS, ids=lambda packs: "-".join(packs) or "none")
def packs(request: pytest.FixtureRequest) -> list[str]:
    chosen: list[str] = request.param
    return chosen


def folders(packs: list[str]) -> list[str]:
    """Return the names of packs in packs/."""
    return [pack.removeprefix("use_") for pack in packs]


def package_of(project: BakedProject) -> Path:
    return project.path / "src" / project.package


def test_packs_are_clean_and_register_their_commands(bake: Bake, check: Check, packs: list[str]) -> None:
    project = bake(**dict.fromkeys(packs, True))
    package = package_of(project)
    assert {path.name for path in (package / "packs").iterdir()} == {"__init__.py", *folders(packs)}
    assert unresolved(package) == []
    check(tool("ruff"), "format", "--check", "--diff", "--no-cache", project.path)
    check(tool("ruff"), "check", "--no-cache", project.path)
    # Here is no torch: so no pack imports it to register itself.
    listed = without_torch(project.path, "python3", "-m", project.package, "--help")
    for name in folders(packs):
        source = (package / "packs" / name / "__init__.py").read_text()
        for command in re.findall(r'^    "(\w+)": Command\(', source, re.MULTILINE):
            assert re.search(rf"^ +{command} ", listed, re.MULTILINE), command


def test_nothing_imports_a_pack_but_itself(bake: Bake) -> None:
    package = package_of(bake(**dict.fromkeys(PACKS, True)))
    for file in package.rglob("*.py"):
        place = file.relative_to(package).parts
        for other in imports_of(file, package):
            of = other.relative_to(package).parts
            assert of[0] != "packs" or of[:2] == place[:2], f"{file} imports {other}"
        if place[0] != "packs":
            assert not re.search(rf"\bpacks\.\w|\b({'|'.join(PACKS)})\b", file.read_text()), file


@pytest.mark.parametrize("pack", PACKS)
def test_without_the_folder_of_a_pack_the_others_are_rendered(bake: Bake, copy: Copy, pack: str) -> None:
    answers = {other: other != pack for other in PACKS}
    shutil.rmtree(copy.folder(pack))
    assert rendered(copy.bake(**answers).path) == rendered(bake(**answers).path)
