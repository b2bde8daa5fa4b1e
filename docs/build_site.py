"""Build the documentation site into site/, from the Markdown of the repository: ``python docs/build_site.py``.

What a page of a project says depends on the answers, so it is taken from projects that are rendered for this. A link to
another page leads to its place on the site, any other to the file on GitHub. zensical makes HTML of that, as
docs/zensical.toml says.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import NamedTuple
from urllib.parse import quote, unquote

ROOT = Path(__file__).resolve().parents[1]
(PROJECT,) = ROOT.glob("{{*}}")
TEMPLATE = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
GITHUB = "https://github.com/org/ddl-template/blob/main/"
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")

# What a researcher looks for, in this order. A new page needs no row: what no pattern fits stands under More.
NAVIGATION = {
    "Quick start": ["index.md"],
    "Choose": ["choose.md"],
    "Your own work": ["project/how-do-i.md", "project/your-own-task.md", "settings.md", "project/readme.md"],
    "Launchers": ["launchers/*"],
    "Backends": ["backends/*"],
    "Many nodes": ["project/many-nodes.md"],
    "Correctness": ["correctness.md"],
    "Faults": ["faults.md"],
    "Speed": ["benchmarks.md", "results/*"],
    "Trackers": ["trackers.md"],
    "Packs": [f"project/{name}.md" for name in ("studies", "strategies", "diagnosis", "export")],
    "What ignite does for you": ["ignite.md"],
    "Compared with others": ["compare.md"],
    "Support": ["support-matrix.md", "versions.md"],
    "Terms": ["terms.md"],
    "Contributing": ["contributing.md", "test-cluster.md"],
    "Changelog": ["changelog.md"],
    "More": ["*"],
}

# Texts that only the site has.
CHOOSER = "\n\n**[Choose in your browser](docs/chooser.html)**, and read the files before you render them.\n"
TRACKERS = """# Trackers

Choose one of these to log every run to it: answer the question `tracker`, or add it later with
`nox -s update -- tracker=wandb`. Any other is one class in `runtime/report/tracker.py`.
"""
SETTINGS = """# Settings

Set them in `configs/default.yaml` of a project or on the command line: `--optim.lr 0.01`. Settings of the task, such as
`--task.width`, are in `task/settings.py`.
"""


class Page(NamedTuple):
    """A page, the file of the repository that it comes from, the one from which its links start, and more that it holds."""

    text: str
    source: str
    start: str
    more: tuple[str, ...] = ()


@cache
def bake(folder: Path, *answers: str) -> Path:
    """Render a project with some answers; return its folder."""
    output = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "cookiecutter", "--no-input", "-o", output, str(ROOT), *answers]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    return Path(output) / "my-ddl-project"


def own_pages() -> Iterator[tuple[str, Page]]:
    """Yield the pages of the repository itself, each with its place; README.md makes two."""
    patterns = ("*.md", "docs/**/*.md", "benchmarks/results/*.md")
    for file in (file for pattern in patterns for file in sorted(ROOT.glob(pattern))):
        path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        if path == "README.md":
            sections = r"^#(?=# Choose$|# What a project can do$)"
            before, choose, after = re.split(sections, text, flags=re.MULTILINE)
            if (ROOT / "docs/chooser.html").exists():
                choose = choose.replace("\n", CHOOSER, 1)
            yield "choose.md", Page(choose, path, path)
            text = f"{before}#{after}"
        elif not text.startswith("# "):
            text = f"# {file.stem.replace('-', ' ').capitalize()}\n\n{text}"
        place = re.sub("^(docs|benchmarks)/", "", path).replace("README", "index").lower()
        yield place, Page(text, path, path)


def project_pages(folder: Path) -> Iterator[tuple[str, Page]]:
    """Yield the pages of projects, each with its place: of one with every pack, and of each backend with each launcher."""
    targets = [tuple(f"{name}=yes" for name in TEMPLATE if name.startswith("use_"))]
    for backend, row in TEMPLATE["_support"].items():
        of_backend = (f"backend={backend}", f"hardware={row['hardware'][-1]}")
        targets += [(*of_backend, f"launcher={launcher}") for launcher in row["launchers"]]
    with ThreadPoolExecutor() as pool:
        projects = pool.map(lambda target: bake(folder, *target), targets)
    texts: dict[str, dict[tuple[str, ...], str]] = {}
    for target, project in zip(targets, projects, strict=True):
        for file in (project / "README.md", *sorted(project.glob("docs/*.md"))):
            name = file.relative_to(project).as_posix()
            texts.setdefault(name, {})[target] = file.read_text(encoding="utf-8")
    for name, of_targets in texts.items():
        sources = sorted(PROJECT.glob(f"**/{name}"))
        path, *more = (source.relative_to(ROOT).as_posix() for source in sources)
        page = Page(project_page(Path(name), of_targets), path, f"{PROJECT.name}/{name}", tuple(more))
        yield place_of(Path(name)), page


def place_of(file: Path) -> str:
    """Return where a page of projects stands on the site."""
    questions = [question for question in ("launcher", "backend") if file.stem in TEMPLATE[question]]
    return f"{f'{questions[0]}s' if questions else 'project'}/{file.name.lower()}"


def project_page(file: Path, texts: dict[tuple[str, ...], str]) -> str:
    """Return a page of the first of some targets, and at its end what those with other backends say beside it."""
    text = next(iter(texts.values()))
    heading, _, rest = text.partition("\n")
    # Its own heading is the project's name.
    heading = "# README.md of a project" if file.name == "README.md" else heading
    page = f"{heading}\n\n*A page of a project, here of one called `my_ddl_project`.*\n{rest}"
    for target, other in texts.items() if file.stem in TEMPLATE["launcher"] else []:
        if own := [line for line in other.splitlines() if line not in text.splitlines()]:
            page += "\n".join([f"\n## With {target[0].replace('=', ' ')}\n", *own, ""])
    return page


def trackers(folder: Path) -> Page:
    """Return a page of what the README of a project says of each tracker."""
    text = TRACKERS
    for name, label in TEMPLATE["__prompts__"]["tracker"].items():
        part = PROJECT / f"choices/tracker/{name}/parts/tracker.md"
        if part.exists():
            lines = part.read_text(encoding="utf-8").strip().splitlines()
            first, last = lines[0], lines[-1]
            readme = (bake(folder, f"tracker={name}") / "README.md").read_text(encoding="utf-8")
            text += f"\n## {label.partition(':')[0]} ({name})\n\n"
            text += f"{readme[readme.index(first) : readme.index(last)]}{last}\n"
    return Page(text, f"{PROJECT.name}/choices/tracker", f"{PROJECT.name}/trackers.md")


def settings(folder: Path) -> Page:
    """Return a page with a table of every setting, as config.py describes it."""
    text, file = SETTINGS, bake(folder) / "src/my_ddl_project/config.py"
    for section in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(section, ast.ClassDef) or not re.fullmatch(r"\w+Config", section.name):
            continue
        name = section.name.removesuffix("Config").lower()
        text += (
            f"\n## {name}\n\n{ast.get_docstring(section)}\n\n| setting | default | meaning |\n|---|---|---|\n"
        )
        for field, described in pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(described, ast.Expr) and field.value:
                default = json.dumps(ast.literal_eval(field.value))
                choices = ", ".join(re.findall(r"'[\w-]+'", ast.unparse(field.annotation))).replace("'", "`")
                meaning = " ".join(str(ast.literal_eval(described.value)).split())
                meaning = f"{choices}: {meaning}" if choices else meaning
                text += f"| `{name}.{ast.unparse(field.target)}` | `{default}` | {meaning} |\n"
    return Page(text, f"{PROJECT.name}/src/{{{{cookiecutter.package_name}}}}/config.py", "settings.md")


def with_links(place: str, page: Page, places: dict[str, str]) -> str:
    """Return the text of a page whose links lead to where their targets stand on the site, or to GitHub."""

    def address(target: str, anchor: str = "") -> str | None:
        found = places.get(target + anchor) or places.get(target)
        return found and relpath(found, dirname(place) or ".") + anchor

    def lead(link: re.Match[str]) -> str:
        target = normpath(f"{dirname(page.start)}/{unquote(link['path'])}").lstrip("/")
        anchor = link["anchor"] or ""
        if not (target in places or (ROOT / target).exists()):
            sys.exit(f"{page.source} links to {link['path']}, which is not there.")
        return f"]({address(target, anchor) or GITHUB + quote(target) + anchor})"

    parts = CODE.split(page.text)
    parts[::2] = [LINK.sub(lead, text) for text in parts[::2]]
    for number in range(1, len(parts), 2):
        # A page of a project names others, to which it cannot link, as some projects lack them.
        found = address(normpath(f"{dirname(page.start)}/../{parts[number].strip('`')}").lstrip("/"))
        if found and not parts[number - 1].endswith("["):
            parts[number] = f"[{parts[number]}]({found})"
    return "".join(parts)


def gather(folder: Path) -> None:
    """Write all pages into a folder, with the configuration of the site."""
    pages = {**dict(own_pages()), **dict(project_pages(folder))}
    pages |= {"trackers.md": trackers(folder), "settings.md": settings(folder)}
    assets = [
        file for file in (ROOT / "docs").iterdir() if file.suffix in (".html", ".png", ".svg", ".css", ".js")
    ]
    places = {name: place for place, page in pages.items() for name in (page.start, page.source, *page.more)}
    places |= {f"docs/{file.name}": file.name for file in assets}
    places |= {"README.md": "index.md", "README.md#choose": "choose.md"}
    docs = folder / "docs"
    docs.mkdir()
    for asset in assets:
        shutil.copy(asset, docs)
    for place, page in pages.items():
        links = (f"[Source of this page]({GITHUB}{quote(name)})" for name in (page.source, *page.more))
        file = docs / place
        file.parent.mkdir(exist_ok=True)
        text = f"{with_links(place, page, places)}\n\n<small>{' · '.join(links)}</small>\n"
        file.write_text(text, encoding="utf-8")
    text = (ROOT / "docs/zensical.toml").read_text(encoding="utf-8") + navigation([*pages])
    (folder / "zensical.toml").write_text(text, encoding="utf-8")


def navigation(places: list[str]) -> str:
    """Return the navigation over some places, as zensical reads it; what is left stands where no pattern is needed."""
    text = ""
    for title, patterns in NAVIGATION.items():
        found = [place for pattern in patterns for place in places if fnmatch.fnmatch(place, pattern)]
        places = [place for place in places if place not in found]
        if found:
            text += f"\n[[project.nav]]\n{json.dumps(title)} = {json.dumps(found if len(found) > 1 else found[0])}\n"
    return text


def main() -> None:
    """Build the site in a folder of its own, and put it in the place of the last one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gather(folder)
        subprocess.run(["zensical", "build", "--strict", "--clean"], cwd=folder, check=True, timeout=300)
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.copytree(folder / "site", ROOT / "site")


if __name__ == "__main__":
    main()
