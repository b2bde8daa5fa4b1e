"""Pages and their translations, read section by section: what a translation has to keep.

``python tests/translations.py`` writes translations.json: the English text of which each translation is one. Run it when
a translation is up to date; until then, the tests name the sections whose English text has changed.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
(PROJECT,) = ROOT.glob("{{*}}")
CHOICES = PROJECT / "choices"
RECORD = Path(__file__).with_suffix(".json")

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
INCLUDE = re.compile(r"\{%-? include \[?(?P<pieces>[^%]+?)\]?(?P<end>(?: ignore missing)? -?%\})")


class Section(NamedTuple):
    """A heading, empty at the beginning of a piece, and the text up to the next one."""

    level: int
    title: str
    text: str


def original(page: Path, language: str) -> Path:
    """The page of which this one is the translation."""
    own = CHOICES / "language" / language
    if not page.is_relative_to(own):
        return page.with_name(page.name.replace(f".{language}.md", ".md"))
    path = page.relative_to(own)
    return CHOICES / path.relative_to("with") if path.parts[0] == "with" else PROJECT / path


def translations(language: str) -> dict[Path, Path]:
    """Every page that has a translation, with it: of the template, and of the projects."""
    own = [path for path in (CHOICES / "language" / language).rglob("*") if path.is_file()]
    pages = sorted([*ROOT.glob(f"*.{language}.md"), *ROOT.glob(f"docs/*.{language}.md"), *own])
    return {original(page, language): page for page in pages}


def to_translate() -> set[Path]:
    """What there has to be in every language: README.md, and all that people read in a project."""
    pages = {*PROJECT.rglob("*.md"), *PROJECT.rglob("*.ipynb"), *PROJECT.rglob("parts/*.sh")}
    return {ROOT / "README.md", *(page for page in pages if not page.is_relative_to(CHOICES / "language"))}


def name(page: Path) -> str:
    """The path of a page, from the root of the template."""
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    """The text of a page; that of a notebook with its code in blocks, and a piece of commands as a block."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".sh":
        return f"```bash\n{text}```\n"
    if page.suffix != ".ipynb":
        return text
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return "\n\n".join(
        source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells
    )


def sections(page: Path) -> list[Section]:
    """The sections of a page, in order."""
    found = [Section(0, "", "")]
    in_block = False
    for line in text_of(page).splitlines(keepends=True):
        in_block ^= line.startswith("```")
        # A comment in a block is no heading.
        heading = None if in_block else re.match(r"(#+) (.+)", line)
        if heading:
            found.append(Section(len(heading[1]), heading[2], ""))
        else:
            found[-1] = found[-1]._replace(text=found[-1].text + line)
    return [section for section in found if section.level or section.text.strip()]


def kept(section: Section, language: str | None) -> dict[str, Any]:
    """What is the same in a section and in its translation into ``language``, which is None in the section itself."""
    prose = BLOCK.sub("", section.text)
    written = re.sub(r"\{[{%].*?[%}]\}", "", prose)
    plain = re.sub(r"`[^`]*`|\]\(\S+\)|<\S+>", "", written)
    prose = re.sub(r"choices/language/\w+/", "", re.sub(r"choices/language/\w+/with/", "choices/", prose))
    prose = re.sub(r"\.\w\w\.md\b", ".md", prose)
    rows = re.findall(r"^\|.*\|$", written, re.MULTILINE)
    return {
        "level of the heading": section.level,
        "code": [line for block in BLOCK.findall(section.text) for line in commands(block)],
        "words in code": set(re.findall(r"`([^`]+)`", prose)),
        # A heading has another anchor in another language.
        "links": {re.sub(r"#.*", "#", target) for target in LINK.findall(prose)},
        "columns of each row": [re.sub(r"`[^`]*`", "", row).count("|") - 1 for row in rows],
        "list items": len(re.findall(r"^ *(?:-|\d+\.) ", written, re.MULTILINE)),
        "paragraphs": len(re.findall(r"\S[^\n]*(?:\n[^\n]+)*", BLOCK.sub("x", section.text))),
        "numbers": set(re.findall(r"\d+(?:[.,]\d+)*", plain)),
        "includes": list(included(section.text, language)),
    }


def commands(block: str) -> list[str]:
    """The lines of a code block, without what it includes; a comment beside a command may be in any language."""
    block = INCLUDE.sub("{% include %}", block)
    return (re.sub(r"(?<=\s# ).+", "...", block) if block.startswith("```bash") else block).splitlines()


def included(text: str, language: str | None) -> Iterator[tuple[str, ...]]:
    """Yield what each statement includes: in a translation, the translation of each Markdown piece before the piece."""
    for statement in INCLUDE.finditer(text):
        pieces = statement["pieces"].split(", ")
        if language is None:
            pieces = [
                each
                for piece in pieces
                for each in ([f"translated {piece}"] * piece.endswith(('.md"', '.sh"')) + [piece])
            ]
        else:
            mark = f'"choices/language/{language}/with/'
            pieces = [re.sub(f"^{mark}", 'translated "choices/', piece) for piece in pieces]
        yield (*pieces, statement["end"])


def differences(page: Path, translation: Path, language: str) -> Iterator[str]:
    """Yield a line for everything that a translation has otherwise than its page."""
    here, there = sections(page), sections(translation)
    if [section.level for section in here] != [section.level for section in there]:
        yield f"{name(page)}: headings: {[s.title for s in here]}, but {language} {[s.title for s in there]}"
        return
    for section, translated in zip(here, there, strict=True):
        theirs = kept(translated, language)
        for what, ours in kept(section, None).items():
            found = theirs[what]
            if what == "numbers":
                # Words such as "two" may become digits.
                ours, found = ours - found, set()
            if ours != found:
                if isinstance(ours, set | list):
                    less = [each for each in ours if each not in found]
                    more = [each for each in found if each not in ours]
                    # Neither has what the other lacks: the order, or how often.
                    ours, found = (less, more) if less or more else (ours, found)
                yield f"{name(page)}: {section.title!r}: {what}: {ours}, but {language} {found}"


def digests(page: Path) -> dict[str, str]:
    """A mark of the text of each section, whichever way its lines are broken."""
    return {
        section.title: hashlib.sha256(" ".join(section.text.split()).encode()).hexdigest()[:8]
        for section in sections(page)
    }


def languages() -> list[str]:
    return sorted(folder.name for folder in (CHOICES / "language").iterdir())


if __name__ == "__main__":
    record = {
        language: {name(page): digests(page) for page in translations(language)} for language in languages()
    }
    RECORD.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
