"""Packs: each alone, all together, or none; nothing else depends on one."""

import ast
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from baking import PACKS, ROOT, BakedProject, rendered, run, tool
from conftest import Bake, Check, copy_template
from count import imports_of

SETS = [(), *((pack,) for pack in PACKS), PACKS]


def package_of(project: BakedProject) -> Path:
    """Return the folder of a project's package."""
    return project.path / "src" / project.package


def commands_of(pack: Path) -> dict[str, str]:
    """Return the commands that a pack registers, and where each is: MODULE:FUNCTION."""
    source = (pack / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS":
            assert isinstance(node.value, ast.Dict)
            calls = [call for call in node.value.values if isinstance(call, ast.Call)]
            names = [ast.literal_eval(key) for key in node.value.keys if key]
            return dict(zip(names, (ast.literal_eval(call.args[1]) for call in calls), strict=True))
    return {}


def test_the_tests_know_every_pack() -> None:
    (project,) = ROOT.glob("{{*}}")
    found = {path.parents[3].parent.name for path in project.glob("choices/*/true/src/*/packs/*/")}
    assert found == {*PACKS}


@pytest.mark.parametrize("packs", SETS, ids=lambda packs: "-".join(packs) or "none")
def test_packs_are_clean_and_register_their_commands(
    bake: Bake, check: Check, environment: dict[str, str], packs: tuple[str, ...]
) -> None:
    project = bake(**dict.fromkeys(packs, True))
    package = package_of(project)
    folders = [package / "packs" / pack.removeprefix("use_") for pack in packs]
    assert {*package.glob("packs/*")} == {*folders}
    check(tool("ruff"), "format", "--check", "--diff", "--no-cache", project.path)
    check(tool("ruff"), "check", "--no-cache", project.path)
    # There is no torch here: a pack must not import it to register itself.
    variables = environment | {"PYTHONPATH": str(project.path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run(sys.executable, "-m", project.package, "--help", cwd=project.path, env=variables)
    assert done.returncode == 0, done.stderr
    listed = {*re.findall(r"^  ([\w-]+) ", done.stdout, re.MULTILINE)}
    commands = {name: place for folder in folders for name, place in commands_of(folder).items()}
    own = {"train", "evaluate", "launch", "shards", "doctor"}
    assert listed == own | commands.keys()
    for place in commands.values():
        module, _, function = place.partition(":")
        source = package.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", source, re.MULTILINE), place


def test_nothing_imports_a_pack_but_itself(bake: Bake) -> None:
    package = package_of(bake(**dict.fromkeys(PACKS, True)))
    packs = package / "packs"
    for file in package.rglob("*.py"):
        own = packs / file.relative_to(packs).parts[0] if file.is_relative_to(packs) else None
        for other in imports_of(file, package):
            assert not other.is_relative_to(packs) or (own and other.is_relative_to(own)), (file, other)
        if not own:
            assert not re.search(rf"\bpacks\.\w|\b({'|'.join(PACKS)})\b", file.read_text(encoding="utf-8")), (
                file
            )


@pytest.mark.parametrize("pack", PACKS)
def test_the_template_renders_without_the_folder_of_a_pack(
    bake: Bake, cookies: Any, tmp_path: Path, pack: str
) -> None:
    answers = {other: other != pack for other in PACKS}
    template = tmp_path / "template"
    template.mkdir()
    copy_template(template)
    (project,) = template.glob("{{*}}")
    shutil.rmtree(project / "choices" / pack)
    result = cookies.bake(extra_context=answers, template=str(template))
    assert result.exception is None
    assert rendered(result.project_path) == rendered(bake(**answers).path)
