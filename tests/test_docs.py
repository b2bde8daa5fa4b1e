"""Links lead somewhere: in the template's pages, as GitHub shows them, and in those of every project."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from baking import QUESTIONS, ROOT, BakedProject

(PROJECT,) = ROOT.glob("{{*}}")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield file and anchor of every relative link of a page."""
    text = re.sub(r"`[^`\n]*`", "code", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in LINK.finditer(text):
        if not re.match(r"[a-z]+:", link["target"]):
            path, _, anchor = unquote(link["target"]).partition("#")
            yield (page.parent / path if path else page), anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, root: Path) -> list[str]:
    """The links of a page that lead nowhere, or out of ``root``."""
    return [
        f"{page.relative_to(root)} links to {path.name}{'#' if anchor else ''}{anchor}"
        for path, anchor in links(page)
        if not path.is_file()
        or not path.resolve().is_relative_to(root.resolve())
        or (anchor and anchor not in anchors(path))
    ]


def reachable(page: Path) -> set[Path]:
    """The pages to which the links of a page lead, and theirs."""
    found, new = set(), [page.resolve()]
    while new:
        here = new.pop()
        found.add(here)
        new += [
            path.resolve() for path, _ in links(here) if path.suffix == ".md" and path.resolve() not in found
        ]
    return found


def pages_of_the_template() -> set[Path]:
    """What people read in the repository; a project's README.md and its pieces are read in the project."""
    return {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")}


def test_every_link_of_the_template_s_pages_leads_somewhere() -> None:
    assert [line for page in sorted(pages_of_the_template()) for line in broken(page, ROOT)] == []


def test_every_page_of_the_template_is_reached_from_its_readme() -> None:
    pages = {page.resolve() for page in pages_of_the_template()}
    assert pages - reachable(ROOT / "README.md") == set()


def test_every_link_of_a_project_s_pages_leads_somewhere(projects: list[BakedProject]) -> None:
    for project in projects:
        for page in project.path.rglob("*.md"):
            assert broken(page, project.path) == [], project


def test_every_page_of_a_project_is_reached_from_its_readme(projects: list[BakedProject]) -> None:
    for project in projects:
        pages = {page.resolve() for page in project.path.rglob("*.md")}
        assert pages == reachable(project.path / "README.md"), project


def test_the_page_of_every_launcher_says_what_becomes_of_exit_codes_and_errors() -> None:
    launchers = set(QUESTIONS["launcher"]) - {"auto"}
    pages = [page for page in PROJECT.glob("choices/launcher/**/docs/*.md") if page.stem in launchers]
    assert {page.stem for page in pages} == launchers
    for page in pages:
        assert {"exit-codes", "troubleshooting"} <= anchors(page), page.name
