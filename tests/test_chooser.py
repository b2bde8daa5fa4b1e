"""The chooser, clicked through in Chromium: what it shows and downloads is what cookiecutter renders."""

import base64
import gzip
import json
import os
import random
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from baking import CONTEXT, QUESTIONS, ROOT, SUPPORT, TARGETS, VERSION, Target, rendered, run, tool
from bundle import packages
from conftest import Bake, Shell
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MOST_BYTES = 2_000_000
BUILD_LIMIT_S = 280
WAIT_S = 10
# Root may use Chromium without its sandbox only, and nothing but the page is to be loaded.
ARGUMENTS = """--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run
    --disable-background-networking --disable-component-update --disable-sync --window-size=1440,900"""
GET_CHROMIUM = "apt-get install chromium chromium-driver"
CHOICES = {name: choices for name, choices in QUESTIONS.items() if not isinstance(choices, str)}
WIDTHS = {"desktop": 1440, "tablet": 820, "phone": 360}
MOST_TABS = 60
# The width of the line around what has the focus; a radio button has it around its word. At the page's end, the focus leaves it.
OUTLINE = """const [focused] = arguments;
    const seen = focused.type === "radio" ? focused.nextElementSibling : focused;
    const { outlineStyle, outlineWidth } = getComputedStyle(seen);
    return focused === document.body ? 99 : outlineStyle === "none" ? 0 : parseFloat(outlineWidth);"""
RUN_AXE = """const [options, done] = arguments;
    axe.run(options).then(({ violations }) => done(
        violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200))}`)));"""
LONGEST = {
    name: max(choices, key=len)
    for name, choices in QUESTIONS.items()
    if isinstance(choices, list) and name not in Target._fields
}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@dataclass
class Chooser:
    """The page in a browser, and what a person does there."""

    driver: Chrome
    address: str
    downloads: Path

    def open(self, **answers: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(self.address + "#" + "&".join(map("=".join, answers.items())))

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def option(self, question: str, answer: str) -> WebElement:
        return self.one(f'input[name="{question}"][value="{answer}"]')

    def choose(self, **answers: str) -> None:
        for question, answer in answers.items():
            label = self.option(question, answer).find_element(By.XPATH, "..")
            # On a phone, the command lies over what has just been scrolled into view.
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", label)
            label.click()
            assert self.option(question, answer).is_selected(), f"{question}={answer} cannot be chosen"

    def choose_target(self, target: Target) -> None:
        """Go there over what works with everything."""
        self.choose(launcher="auto", backend="auto")
        self.choose(**target._asdict())

    def command(self) -> list[str]:
        return shlex.split(self.one("#line").text)

    def answers(self) -> dict[str, str]:
        """What is chosen, as the command says it."""
        *start, option = self.command()[:3]
        assert (start, option) == (["cookiecutter", CONTEXT["_template_source"]], "--no-input")
        return dict(word.split("=") for word in self.command()[3:])

    def target(self) -> Target:
        """What the radio buttons say, without auto."""
        return Target(
            *(
                self.one(f'input[name="{name}"]:checked').get_attribute("value") or ""
                for name in Target._fields
            )
        )

    def marks(self) -> dict[str, str]:
        """What the tree says of each file that differs; every folder with such a file is open."""
        return {
            row.get_attribute("data-path") or "": row.find_element(By.CLASS_NAME, "mark").text
            for row in self.all('[role="treeitem"].file:has(.mark)')
        }

    def show(self, name: str) -> str:
        """Select a file in the tree; return its text."""
        self.one(f'[role="treeitem"][data-path="{name}"]').click()
        assert self.one("#name").text == name
        return self.one("#text pre:last-child").get_property("textContent")  # type: ignore[return-value]

    def refusal(self, question: str, answer: str) -> WebElement:
        """The sentence that says why an answer is refused."""
        (found,) = (
            sentence
            for sentence in self.all(f"#refused-{question} li")
            if answer in sentence.find_element(By.TAG_NAME, "b").text.split(", ")
        )
        return found

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def tab_to(self, selector: str) -> None:
        """Press Tab until an element has the focus; wherever the focus is meanwhile, one can see it."""
        for _ in range(MOST_TABS):
            self.press(Keys.TAB)
            focused = self.focused()
            assert self.driver.execute_script(OUTLINE, focused) >= 2, focused.get_attribute("outerHTML")
            if self.driver.execute_script("return arguments[0].matches(arguments[1])", focused, selector):
                return
        pytest.fail(f"Tab does not lead to {selector}")

    def download(self) -> dict[str, tuple[bytes, bool]]:
        """Content and executable bit of every file of the zip."""
        archive = self.downloads / "my-ddl-project.zip"
        archive.unlink(missing_ok=True)
        self.one("#download").click()
        WebDriverWait(self.driver, WAIT_S).until(lambda _: archive.exists() and zipfile.is_zipfile(archive))
        with zipfile.ZipFile(archive) as opened:
            assert opened.testzip() is None
            return {
                entry.filename.removeprefix("my-ddl-project/"): (
                    opened.read(entry),
                    bool(entry.external_attr >> 16 & 0o111),
                )
                for entry in opened.infolist()
            }


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page: that of nox, or built anew, as any other may be of an earlier template."""
    if "CHOOSER_PAGE" in os.environ:
        return Path(os.environ["CHOOSER_PAGE"]).resolve()
    page = tmp_path_factory.mktemp("chooser") / "chooser.html"
    command = [sys.executable, str(ROOT / "chooser/build.py"), str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return page


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = tool("chromium", GET_CHROMIUM)
    for argument in (*ARGUMENTS.split(), f"--user-data-dir={tmp_path_factory.mktemp('user')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(tool("chromedriver", GET_CHROMIUM)))
    driver.set_page_load_timeout(WAIT_S)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def chooser(driver: Chrome, page: Path, tmp_path: Path) -> Iterator[Chooser]:
    """The page as it opens; whatever a test does there, the console stays empty and nothing is loaded."""
    look(driver, "light", "desktop")
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    driver.get_log("browser")  # type: ignore[no-untyped-call]
    chooser = Chooser(driver, page.as_uri(), tmp_path)
    chooser.open()
    yield chooser
    assert driver.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert (
        driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        == []
    )


def look(driver: Chrome, scheme: str, width: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": WIDTHS[width], "height": 800, "deviceScaleFactor": 1, "mobile": width == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


# What cookiecutter renders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_download_of_every_target_is_what_its_command_renders(
    chooser: Chooser, bake: Bake, target: Target
) -> None:
    chooser.choose_target(target)
    answers = chooser.answers()
    assert chooser.target() == target
    project = bake(**answers)
    assert project.target == target
    assert chooser.download() == rendered(project.path)


def some_answers() -> Iterator[dict[str, str]]:
    """Draw answers to every question, each of them at least once; "auto" where it stands for the same."""
    chance = random.Random(1)
    rows = max(len(choices) for choices in CHOICES.values() if not isinstance(choices, bool))
    others = {
        name: ["true", "false"] if isinstance(choices, bool) else choices
        for name, choices in CHOICES.items()
        if name not in Target._fields
    }
    columns = {name: chance.sample(choices * rows, rows) for name, choices in others.items()}
    for number, target in enumerate(chance.sample(TARGETS, rows)):
        answers = target._asdict()
        if SUPPORT[target.backend]["launchers"][0] == target.launcher:
            answers["launcher"] = "auto"
        if CONTEXT["_auto_backend"][target.hardware] == target.backend:
            answers["backend"] = chance.choice(["auto", target.backend])
        yield answers | {name: column[number] for name, column in columns.items()}


@pytest.mark.parametrize("answers", [*some_answers()], ids=lambda answers: "-".join(answers.values()))
def test_the_download_of_any_answers_is_what_the_command_renders(
    chooser: Chooser, shell: Shell, tmp_path: Path, answers: dict[str, str]
) -> None:
    chooser.choose(launcher="auto", backend="auto")
    chooser.choose(**answers)
    program, source, *options = chooser.command()
    assert source == CONTEXT["_template_source"]
    done = shell(program, ROOT, *options)
    assert done.returncode == 0, done.stderr
    assert chooser.download() == rendered(tmp_path / "my-ddl-project")


def test_the_command_names_no_answer_that_is_the_default(chooser: Chooser) -> None:
    assert chooser.command() == ["cookiecutter", CONTEXT["_template_source"], "--no-input"]
    chooser.choose(task="gan", use_docker="false")
    assert chooser.answers() == {"task": "gan", "use_docker": "false"}
    chooser.choose(task=CHOICES["task"][0])
    assert chooser.answers() == {"use_docker": "false"}


# What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_what_is_refused_says_why_and_offers_the_nearest_that_works(chooser: Chooser, target: Target) -> None:
    chooser.choose_target(target)
    for question in Target._fields:
        for answer in CHOICES[question]:
            if answer == "auto":
                continue
            asked = target._replace(**{question: answer})
            option = chooser.option(question, answer)
            assert option.is_enabled() == (asked in TARGETS), asked
            if not option.is_enabled():
                row = SUPPORT[asked.backend]
                culprit = asked.hardware if asked.hardware not in row["hardware"] else asked.launcher
                refusal = row["refused"][culprit]
                why, _, works = chooser.refusal(question, answer).text.partition(". Nearest: ")
                assert why.endswith(f": {refusal['why']}")
                nearest = target if works == "as chosen." else Target(*works.split(", "))
                assert nearest in TARGETS and nearest.hardware == asked.hardware
                assert refusal["choose"].items() <= nearest._asdict().items()


def test_what_is_refused_cannot_be_chosen_and_what_is_offered_instead_can(chooser: Chooser) -> None:
    refused = chooser.option("launcher", "horovodrun")
    label = refused.find_element(By.XPATH, "..")
    label.click()
    assert not refused.is_selected() and chooser.answers() == {}
    chooser.refusal("launcher", "horovodrun").find_element(By.TAG_NAME, "button").click()
    assert chooser.target() == Target("cpu", "horovod", "horovodrun")
    assert refused.is_enabled()


def test_what_is_refused_together_with_auto_is_refused_for_what_it_stands_for(chooser: Chooser) -> None:
    chooser.choose(hardware="tpu")
    assert not chooser.option("launcher", "slurm").is_enabled()
    assert chooser.option("launcher", "spawn").is_enabled()
    assert "Now xla-tpu." in chooser.one("#about-backend").text


# Comparison ---------------------------------------------------------------------------------------------------


def test_the_tree_and_the_differences_are_those_of_two_renderings(
    chooser: Chooser, bake: Bake, tmp_path: Path
) -> None:
    """Each difference, applied to the file as it was, makes the file as it is."""
    assert chooser.marks() == {}
    before, after = (rendered(bake(**answers).path) for answers in ({}, {"launcher": "slurm"}))
    chooser.choose(launcher="slurm")
    expected = {name: "removed" for name in before.keys() - after.keys()}
    expected |= {name: "added" for name in after.keys() - before.keys()}
    expected |= {name: "changed" for name in before.keys() & after.keys() if before[name] != after[name]}
    assert {*expected.values()} == {"added", "removed", "changed"}
    assert chooser.marks() == expected
    chooser.one("#only").click()
    assert {row.get_attribute("data-path") for row in chooser.all(".file")} == expected.keys()
    chooser.one("#as-difference").click()
    for name in expected:
        file = tmp_path / "file"
        file.write_bytes(before.get(name, (b"", False))[0])
        (tmp_path / "patch").write_text(f"--- a/file\n+++ b/file\n{chooser.show(name)}", newline="")
        done = run("git", "apply", "patch", cwd=tmp_path)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert file.read_bytes() == after.get(name, (b"", False))[0], name


def test_a_project_is_compared_with_the_choice_before_it_or_with_the_default_one(chooser: Chooser) -> None:
    chooser.choose(launcher="slurm")
    chooser.choose(license="none")
    assert chooser.marks().keys() == {".ddl-template.json", "LICENSE", "pyproject.toml"}
    chooser.one("#other option[value=default]").click()
    assert chooser.marks().keys() > {
        ".ddl-template.json",
        "LICENSE",
        "pyproject.toml",
        "scripts/train.sbatch",
    }
    assert "3 removed" in chooser.one("#summary").text


def test_every_file_is_shown_as_it_is(chooser: Chooser, bake: Bake) -> None:
    while closed := chooser.all('.folder[aria-expanded="false"]'):
        closed[0].click()
    names = [row.get_attribute("data-path") or "" for row in chooser.all(".file")]
    project = bake()
    assert sorted(names) == [name for name in project.files() if name != VERSION]
    for name in names:
        assert chooser.show(name) == project.read(name), name
    chooser.show("noxfile.py")
    assert chooser.all(".hljs-keyword")


def test_an_address_holds_the_choice(chooser: Chooser) -> None:
    chooser.choose(hardware="gpu", launcher="slurm", tracker="mlflow")
    address = chooser.driver.current_url
    chooser.open()
    assert chooser.answers() == {}
    chooser.driver.get(address)
    assert chooser.answers() == {"hardware": "gpu", "launcher": "slurm", "tracker": "mlflow"}
    # What is refused, and what is no answer.
    chooser.open(hardware="tpu", backend="nccl", task="nothing")
    assert chooser.answers() == {"hardware": "tpu", "backend": "xla-tpu", "launcher": "spawn"}


# For everybody ------------------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(chooser: Chooser) -> None:
    """Choose, accept what is offered instead, walk through the tree, look at a difference, download: without a pointer."""
    chooser.tab_to('input[name="hardware"]')
    chooser.press(Keys.ARROW_RIGHT)
    assert chooser.answers() == {"hardware": "gpu"}
    chooser.tab_to('input[name="backend"]')
    chooser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert chooser.answers() == {"hardware": "gpu", "backend": "nccl"}
    chooser.tab_to("#refused-launcher button")
    chooser.press(Keys.ENTER)
    assert chooser.target() == Target("gpu", "horovod", "horovodrun")
    assert chooser.focused() == chooser.one('input[name="launcher"]:checked')

    chooser.tab_to("#only")
    chooser.tab_to('[role="treeitem"]')
    chooser.press(Keys.HOME, Keys.ARROW_LEFT)
    assert chooser.focused() == chooser.one('[role="treeitem"][aria-expanded="false"]')
    rows = len(chooser.all('[role="treeitem"]'))
    chooser.press(Keys.ARROW_RIGHT)
    assert len(chooser.all('[role="treeitem"]')) > rows
    chooser.press(Keys.ARROW_RIGHT)
    assert chooser.focused().get_attribute("aria-level") == "2"
    chooser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert len(chooser.all('[role="treeitem"]')) == rows
    chooser.press(Keys.END, Keys.ARROW_UP, Keys.ENTER)
    assert chooser.focused().get_attribute("aria-selected") == "true"
    assert chooser.focused().text.startswith(chooser.one("#name").text)

    chooser.tab_to("#as-difference")
    chooser.press(Keys.SPACE)
    assert chooser.one("#as-difference").get_attribute("aria-pressed") == "true"
    chooser.tab_to("#text")
    chooser.tab_to("#download")
    chooser.press(Keys.ENTER)
    WebDriverWait(chooser.driver, WAIT_S).until(lambda _: [*chooser.downloads.glob("*.zip")])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(chooser: Chooser, scheme: str, width: str) -> None:
    """Contrast, names and roles, by the rules of WCAG 2.2 AA, in each state that looks different."""
    look(chooser.driver, scheme, width)
    chooser.driver.execute_script((packages() / "axe-core/axe.min.js").read_text(encoding="utf-8"))
    for change in (
        lambda: None,
        lambda: chooser.one("summary").click(),
        lambda: chooser.choose(hardware="tpu"),
        lambda: chooser.show("pyproject.toml"),
        lambda: chooser.one("#as-difference").click(),
    ):
        change()
        found = chooser.driver.execute_async_script(RUN_AXE, {"runOnly": RULES})
        assert found == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_does_not_scroll_sideways(chooser: Chooser, width: str) -> None:
    look(chooser.driver, "light", width)
    chooser.choose(hardware="tpu", **LONGEST)
    for name in ("README.md", "pyproject.toml"):
        chooser.show(name)
        for button in ("#as-text", "#as-difference"):
            chooser.one(button).click()
            assert (
                chooser.driver.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width]
            )


# The page as a file -------------------------------------------------------------------------------------------


def test_the_page_is_small_and_is_of_no_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    found = re.search(r'id="data">([^<]+)<', text)
    assert found
    known = gzip.decompress(base64.b64decode(found[1])).decode()
    assert VERSION not in {file["name"] for file in json.loads(known)["files"]}
    for word in (
        str(ROOT),
        str(page.parent),
        run("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip() or "no commit",
    ):
        assert word not in text and word not in known
