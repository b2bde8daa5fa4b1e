"""What a release consists of: one version everywhere, and every target rendered for reading."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from baking import ROOT, TARGETS, run
from conftest import Bake, git
from release import cited, newest_entry, read, refusal, version

PINNED = re.compile(r"(?:uses|image|FROM):? (\S+@\S+)(?: # (\S+))?")
CHANGELOG = "# Changelog\n\n## 1.2.0 - 2027-01-31\n\n## 1.1.0 - 2026-12-31\n"
CITATION = "cff-version: 1.2.0\nversion: 1.2.0\ndate-released: 2027-01-31\n"


def test_the_version_is_the_same_everywhere(bake: Bake) -> None:
    assert newest_entry(read("CHANGELOG.md"))[0] == version()
    assert cited(read("CITATION.cff"))[0] == version()
    project = bake()
    assert json.loads(project.read(".ddl-template.json"))["version"] == version()


def test_the_changelog_and_the_citation_have_the_same_date() -> None:
    assert newest_entry(read("CHANGELOG.md"))[1] == cited(read("CITATION.cff"))[1]


@pytest.mark.parametrize(
    ("tag", "changelog", "citation", "reason"),
    [
        ("v1.2.0", CHANGELOG, CITATION, None),
        ("v1.2.1", CHANGELOG, CITATION, "the tag v1.2.1 is not v1.2.0"),
        ("1.2.0", CHANGELOG, CITATION, "the tag 1.2.0 is not v1.2.0"),
        (
            "v1.2.0",
            CHANGELOG.replace("1.2.0", "1.1.9"),
            CITATION,
            "the first entry of CHANGELOG.md is of 1.1.9",
        ),
        ("v1.2.0", "# Changelog\n", CITATION, "the first entry of CHANGELOG.md is of none"),
        (
            "v1.2.0",
            CHANGELOG.replace("2027-01-31", "Unreleased"),
            CITATION,
            "CHANGELOG.md calls 1.2.0 Unreleased",
        ),
        ("v1.2.0", CHANGELOG, "cff-version: 1.2.0\nversion: 1.1.0\n", "CITATION.cff is of 1.1.0"),
        (
            "v1.2.0",
            CHANGELOG,
            "version: 1.2.0\n",
            "CITATION.cff says Unreleased, and CHANGELOG.md 2027-01-31",
        ),
    ],
)
def test_only_a_tag_that_fits_all_is_released(
    tag: str, changelog: str, citation: str, reason: str | None
) -> None:
    sentence = refusal(tag, "1.2.0", changelog, citation)
    assert sentence == reason or (reason and sentence and sentence.startswith(reason))


def test_the_citation_has_what_its_format_asks_for() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= citation.keys()
    assert all("name" in author for author in citation["authors"])


def test_the_template_pins_what_its_projects_pin() -> None:
    """Whatever else it uses has a commit too, and says which version that is."""
    (project,) = ROOT.glob("{{*}}")
    pinned = [project / "choices/use_github_actions/true/.github/workflows/ci.yml"]
    pinned += project.glob("choices/hardware/cpu/parts/image.Dockerfile")
    pins = {
        pin.partition("@")[0]: (pin, name)
        for file in pinned
        for pin, name in PINNED.findall(file.read_text())
    }
    for file in (ROOT / ".github/workflows").iterdir():
        used = PINNED.findall(file.read_text())
        assert len(used) == len(re.findall(r"\b(?:uses|image):", file.read_text())) > 0
        for pin, name in used:
            action, _, commit = pin.partition("@")
            assert pins.get(action, (pin, name)) == (pin, name), file.name
            assert action in pins or (
                re.fullmatch("[0-9a-f]{40}", commit) and re.fullmatch(r"v[\d.]+", name)
            ), pin


class Session:
    """What the session is given instead of nox's own: a bake that only makes the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.posargs, self.commands = (
            folder,
            [str(folder / "instances")],
            list[tuple[str, ...]](),
        )

    def install(self, *packages: str) -> None:
        assert packages == ("cookiecutter",)

    def create_tmp(self) -> str:
        return str(self.folder)

    def run(self, *command: str, silent: bool) -> None:
        self.commands.append(command)
        project = self.folder / "my-ddl-project"
        project.mkdir()
        (project / "README.md").write_text(f"{' '.join(command[-3:])}\n")
        (project / ".cruft.json").write_text("{}\n")


def test_an_instance_is_rendered_for_each_target_of_the_table(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "noxfile.py"))["instances"](Session(tmp_path))
    folders = {folder.name: folder for folder in (tmp_path / "instances").iterdir()}
    assert folders.keys() == {str(target) for target in TARGETS}
    for target in TARGETS:
        assert [file.name for file in folders[str(target)].iterdir()] == ["README.md"]
        asked = " ".join(f"{question}={answer}" for question, answer in target._asdict().items())
        assert (folders[str(target)] / "README.md").read_text() == f"{asked}\n"


def test_each_release_is_a_commit_upon_the_one_before_it(environment: dict[str, str], tmp_path: Path) -> None:
    copy, remote = tmp_path / "template", tmp_path / "remote.git"
    (copy / ".ci").mkdir(parents=True)
    (copy / ".ci/publish").write_text(read(".ci/publish"))
    git(tmp_path, environment, "init", "-q", "--bare", str(remote))
    for tag, files in {
        "v1": ("old.md", "kept.md", ".hidden"),
        "v2": ("new.md", "kept.md", ".hidden"),
    }.items():
        folder = copy / "instances/cpu-gloo-torchrun"
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).write_text(f"{name}\n")
        done = run("bash", copy / ".ci/publish", str(remote), tag, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        for name in files:
            (folder / name).unlink()
        folder.rmdir()
    assert git(remote, environment, "log", "--format=%s", "instances").split() == ["v2", "v1"]
    names = git(remote, environment, "ls-tree", "-r", "--name-only", "instances").split()
    assert names == [f"cpu-gloo-torchrun/{name}" for name in (".hidden", "kept.md", "new.md")]
