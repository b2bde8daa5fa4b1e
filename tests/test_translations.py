"""A translation says what its page says: the same sections, commands, tables, links and numbers, of the same English text."""

import json
import re
from collections.abc import Iterator

import pytest
import translations
from baking import QUESTIONS, BakedProject
from translations import BLOCK, CHOICES, RECORD, differences, digests, name, sections, to_translate

LANGUAGES = [language for language in QUESTIONS["language"] if language != "en"]
# The letters of a language, which every paragraph has to have.
LETTERS = {"ko": "[가-힣]"}
# More English words in a row than any name has.
ENGLISH = re.compile(r"(?:\b[A-Za-z]+ ){4}[A-Za-z]+")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_and_every_piece_is_translated_and_every_translation_is_of_one(language: str) -> None:
    pages = translations.translations(language)
    assert sorted(name(page) for page in to_translate() - pages.keys()) == [], f"not in {language}"
    assert [name(translation) for page, translation in pages.items() if not page.is_file()] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_has_the_same_sections_commands_tables_links_and_numbers(language: str) -> None:
    pages = translations.translations(language)
    found = [line for page, translation in pages.items() for line in differences(page, translation, language)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_is_of_the_present_text(language: str) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))[language]
    pages = translations.translations(language)
    found = [
        f"{name(page)}: {title!r} has changed: adapt {name(translation)}, then run python tests/translations.py"
        for page, translation in pages.items()
        for title, digest in digests(page).items()
        if record.get(name(page), {}).get(title) != digest
    ]
    assert not found, "\n".join(found)
    assert record.keys() == {name(page) for page in pages}, "run python tests/translations.py"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translated_notebook_differs_in_its_text_alone(language: str) -> None:
    (pair,) = (pair for pair in translations.translations(language).items() if pair[0].suffix == ".ipynb")
    page, translation = (json.loads(notebook.read_text(encoding="utf-8")) for notebook in pair)
    for cell in [*page["cells"], *translation["cells"]]:
        if cell["cell_type"] == "markdown":
            cell["source"] = None
    assert translation == page


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items, tables and headings of a page, without code, tags and links' targets."""
    prose = re.sub(r"`[^`]*`|\]\(\S+\)|<[^<>\n]+>", "", BLOCK.sub("", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=#)|\n(?= *(?:-|\d+\.) )", prose):
        # The title may be a name, and mathematics has no language.
        if re.search(r"[^\W\d_]", paragraph) and not re.match(r"\s*(# |\$\$)", paragraph):
            yield paragraph


def assert_in(language: str, text: str, where: str) -> None:
    """Every paragraph, and every comment beside a command, is in the language."""
    commands = "".join(block for block in BLOCK.findall(text) if block.startswith("```bash"))
    for part in (*re.findall(r"\s# (.+)", commands), *paragraphs(text)):
        assert re.search(LETTERS[language], part), f"{where}: {part}"
        assert not ENGLISH.search(part), f"{where}: {part}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_paragraph_of_a_translated_page_of_the_template_is_in_its_language(language: str) -> None:
    pages = [page for page in translations.translations(language).values() if page.suffix == ".md"]
    own = [page for page in pages if not page.is_relative_to(CHOICES)]
    assert own
    for page in own:
        assert_in(language, translations.text_of(page), name(page))


def test_every_paragraph_of_a_translated_project_is_in_its_language(projects: list[BakedProject]) -> None:
    seen = set()
    for project in projects:
        language = project.answers["language"]
        if language == "en":
            continue
        for file in project.files():
            if not file.endswith((".md", ".ipynb")):
                continue
            seen.add(file)
            text = translations.text_of(project.path / file)
            # Answers are a user's own words.
            text = text.replace(project.answers["description"] or "\0", "", 1)
            assert_in(language, text, f"{file} of {project}")
    assert {"README.md", "docs/torchrun.md", "docs/speed.md", "notebooks/train.ipynb"} <= seen


@pytest.mark.parametrize("language", LANGUAGES)
def test_emphasis_ends_where_a_renderer_sees_it_end(language: str) -> None:
    """Between punctuation and a letter, as before a Korean particle, two asterisks are no end but asterisks."""
    for translation in translations.translations(language).values():
        fault = re.search(r"[^\w\s*]\*\*\w", BLOCK.sub("", translations.text_of(translation)))
        assert not fault, f"{name(translation)}: {fault}"


def test_each_language_is_a_folder() -> None:
    assert translations.languages() == sorted(LANGUAGES)
    assert not [page for page in CHOICES.glob("language/*/*.md") if len(sections(page)) < 2]
