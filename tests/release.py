"""Whether a version can be released: ``python tests/release.py TAG`` says in one sentence why not.

The version is ``_template_version`` of cookiecutter.json; what else says it must say the same.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"^## (?P<version>\S+) - (?P<date>.+)$", re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def version() -> str:
    """Return the version of the template."""
    return str(json.loads(read("cookiecutter.json"))["_template_version"])


def newest_entry(changelog: str) -> tuple[str, str]:
    """Return version and date of the first entry; the date is "Unreleased" until it is released."""
    entry = ENTRY.search(changelog)
    return (entry["version"], entry["date"]) if entry else ("none", "Unreleased")


def cited(citation: str) -> tuple[str, str]:
    """Return version and date of CITATION.cff, which has no date until it is released."""
    found = dict(re.findall(r"^(version|date-released): ['\"]?([^'\"\n]+)", citation, re.MULTILINE))
    return found.get("version", "none"), found.get("date-released", "Unreleased")


def refusal(tag: str, version: str, changelog: str, citation: str) -> str | None:
    """Say why ``tag`` cannot be released, or return None."""
    if tag != f"v{version}":
        return (
            f"the tag {tag} is not v{version}, of _template_version in cookiecutter.json: change one of them"
        )
    (of_changelog, date), (of_citation, cited_on) = newest_entry(changelog), cited(citation)
    if of_changelog != version:
        return f"the first entry of CHANGELOG.md is of {of_changelog}: add one of {version}"
    if of_citation != version:
        return f"CITATION.cff is of {of_citation}: write version: {version}"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        return f"CHANGELOG.md calls {version} {date}: write the day of the release there, such as 2027-01-31"
    if cited_on != date:
        return f"CITATION.cff says {cited_on}, and CHANGELOG.md {date}: write date-released: {date}"
    return None


if __name__ == "__main__":
    if sentence := refusal(sys.argv[1], version(), read("CHANGELOG.md"), read("CITATION.cff")):
        sys.exit(f"release: {sentence}.")
