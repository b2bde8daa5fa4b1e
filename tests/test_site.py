"""The documentation site, as built: its links lead somewhere, its search finds, and it loads nothing from elsewhere."""

import functools
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from baking import ROOT, missing_facility, run, tool
from selenium import webdriver

pytestmark = pytest.mark.site

SITE = ROOT / "site"
GET_BROWSER = "apt-get install chromium chromium-driver"
OPTIONS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --window-size=1280,900"""
# What readers search for, and the pages that help them; the first page that is found must be one of these.
WANTED = {
    "gradient accumulation": "project/how-do-i/ settings/",
    "BatchNorm": "correctness/",
    "resume": "project/how-do-i/ correctness/",
    "profile": "project/how-do-i/",
    "wandb": "trackers/",
    "multi-node": "project/many-nodes/",
    "OOM": "project/how-do-i/",
    "out of memory": "project/how-do-i/",
    "mixed precision": "project/how-do-i/ settings/",
    "seed": "correctness/ project/studies/",
    "checkpoint": "project/how-do-i/ correctness/",
    "Slurm requeue": "launchers/slurm/",
    "early stopping": "settings/ project/how-do-i/ project/your-own-task/",
    "custom dataset": "project/your-own-task/",
    "CUDA_VISIBLE_DEVICES": "backends/nccl/",
    "FSDP": "project/strategies/",
    "sweep": "project/studies/ project/how-do-i/",
}


class Reader(HTMLParser):
    """Collects the links of a page, what it loads, its anchors, and the text that is no code."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links, self.loads, self.text, self.inside = list[str](), list[str](), "", list[str]()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag in ("code", "pre", "script", "style"):
            self.inside.append(tag)
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "link" and given["rel"] in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(given["href"])
        self.loads += [given[name] for name in ("src", "srcset") if name in given]

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text += data


@pytest.fixture(scope="module")
def pages() -> dict[str, Reader]:
    """Every page of the site, by its address there."""
    found = {file.relative_to(SITE).parent.as_posix(): Reader(file) for file in SITE.rglob("index.html")}
    assert len(found) > 25, "nox -s site builds the site before it checks it"
    return found


def test_every_link_within_the_site_leads_to_a_page_and_an_anchor_of_it() -> None:
    check = [
        tool("lychee"),
        "--offline",
        "--no-progress",
        "--include-fragments",
        "--index-files",
        "index.html",
    ]
    done = run(*check, "--root-dir", SITE, *SITE.rglob("index.html"), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_other_link_is_an_address(pages: dict[str, Reader]) -> None:
    others = {link for page in pages.values() for link in page.links if re.match("[a-z]+:", link)}
    assert len(others) > 20
    for link in others:
        address = urlsplit(link)
        assert address.scheme in ("https", "http") and re.fullmatch(r"[\w.-]+(:\d+)?", address.netloc), link
        assert address.scheme == "https" or address.hostname in ("localhost", "127.0.0.1"), link


def test_every_link_to_a_file_of_the_repository_names_one(pages: dict[str, Reader]) -> None:
    start = "https://github.com/org/ddl-template/blob/main/"
    files = {
        link.removeprefix(start).partition("#")[0]
        for page in pages.values()
        for link in page.links
        if start in link
    }
    assert len(files) > 25
    assert [file for file in files if not (ROOT / unquote(file)).exists()] == []


def test_every_page_of_the_repository_and_its_projects_is_on_the_site(pages: dict[str, Reader]) -> None:
    (project,) = ROOT.glob("{{*}}")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/*.md")]
    files += [*project.glob("docs/*.md"), *project.glob("choices/*/*/docs/*.md")]
    sources = {unquote(link) for page in pages.values() for link in page.links}
    missing = [
        str(file) for file in files if not any(link.endswith(str(file.relative_to(ROOT))) for link in sources)
    ]
    assert missing == []


def test_no_markdown_is_left_and_no_expression_of_the_template(pages: dict[str, Reader]) -> None:
    for place, page in pages.items():
        assert not re.search(r"\]\(|\|--|```|\*\*|{{|{%", page.text), place


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served on this machine alone."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window, which notes what it asks the network for."""
    programs = [shutil.which(name) for name in ("chromium", "google-chrome", "chromedriver")]
    if not any(programs[:2]) or not programs[2]:
        missing_facility("a browser with its driver", GET_BROWSER)
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0] or programs[1] or ""
    for option in [*OPTIONS.split(), f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=programs[2]))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def asked(browser: Any) -> set[str]:
    """Return the addresses that the browser has asked for since the last time."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {params["request"]["url"] for params in sent}


def test_a_page_loads_nothing_from_another_host(pages: dict[str, Reader], browser: Any, address: str) -> None:
    assert {load for page in pages.values() for load in page.loads if re.match("([a-z]+:)?//", load)} == set()
    asked(browser)
    for place in pages:
        browser.get(address + place)
        seen = asked(browser)
        assert any(url.endswith(".css") for url in seen)
        assert {url for url in seen if not url.startswith((address, "data:", "chrome:"))} == set(), place


def found(browser: Any, address: str, words: str) -> list[str]:
    """Type words into the search of the site; return the places that it shows."""
    browser.get(address)
    browser.find_element("css selector", ".md-search__button").click()
    (root,) = browser.execute_script(
        "return [...document.body.children].map(e => e.shadowRoot).filter(Boolean)"
    )
    shown, last = list[str](), None
    field = root.find_element("css selector", "input")
    field.send_keys(words)
    deadline = time.monotonic() + 30
    # Results come and change while it types.
    while not (shown and shown == last) and time.monotonic() < deadline:
        time.sleep(0.5)
        last, shown = (
            shown,
            [link.get_attribute("href") for link in root.find_elements("css selector", "a[href]")],
        )
    return [link.removeprefix(address) for link in shown]


@pytest.mark.parametrize("words", WANTED)
def test_who_searches_lands_on_a_page_that_helps(browser: Any, address: str, words: str) -> None:
    first = found(browser, address, words)[:1]
    assert first and first[0].partition("?")[0].partition("#")[0] in WANTED[words].split(), first
