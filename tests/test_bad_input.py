"""A bad input is used, or refused in one line; a refusal changes nothing on the disk.

In CI the cases are the same in every run, so that a failure is due to the change. Elsewhere, or with BAD_INPUT_CASES, they
are random.
"""

import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from baking import Target
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from installing import FACILITIES, Installed, Installer

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

CASES = int(os.environ.get("BAD_INPUT_CASES", "200"))
CASES_LIMIT_S = float(os.environ.get("BAD_INPUT_S", "180"))
ANSWER_LIMIT_S = 60
FUZZED = settings(
    max_examples=CASES,
    derandomize=bool(os.environ.get("CI")) and "BAD_INPUT_CASES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
ONE_STEP = ["--train.max_iterations", "1", "--distributed.nproc_per_node", "1", "--train.run_dir", "runs/x"]
# Set by ONE_STEP, or the number of processes to start.
LEFT_ALONE = {"train.max_iterations", "distributed.nproc_per_node"}


class Case(NamedTuple):
    """One command, the file that --config names, and variables of the environment."""

    arguments: list[str]
    file: bytes | None = None
    variables: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    """How a command ended."""

    code: int | None
    errors: str


Ask = Callable[[Case, Path], Answer]


@contextmanager
def answering(project: Installed) -> Iterator[Ask]:
    """Run commands one after the other in one process."""
    process = subprocess.Popen(
        ["python3", str(FACILITIES / "answering.py"), project.package],
        cwd=project.path,
        env={**project.environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout

    def ask(case: Case, folder: Path) -> Answer:
        asked = {"arguments": case.arguments, "folder": str(folder), "variables": dict(case.variables)}
        assert process.stdin and process.stdout
        print(json.dumps(asked), file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_LIMIT_S)
        assert ready, f"no answer to {case}"
        line = process.stdout.readline()
        assert line, f"{case} ended the process"
        return Answer(**json.loads(line))

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


def check(answer: Answer, case: object) -> None:
    """A failure is one line, whatever the cause."""
    assert answer.code in (0, 1, 2), f"{case}\n{answer.code}\n{answer.errors}"
    assert "Traceback" not in answer.errors, f"{case}\n{answer.errors}"
    if answer.code:
        lines = [line for line in answer.errors.splitlines() if line.startswith(("error: ", "[rank 0] "))]
        assert len(lines) == 1, f"{case}\n{answer.errors}"


def content(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder except the log, which may contain the refusal."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in ("log.txt", ".lock")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


# As written in a file or after an option.
VALUES = [
    *re.split(
        r"\|\n?",
        """null|~||true|x|é|'|--x|*a|&a [*a]|[]|[1]|{}|{a: 1}|
.nan|nan|.inf|-inf|1e400|1e-3|0.5|-1|0|1|3|257|0x10|1_000|2020-01-01|
2147483648|9223372036854775807|9223372036854775808|-1e30|1e30|
1 epoch|0 steps|-1 epochs|0.001 epochs|1e9 steps|!!python/object:os.system x|
auto|none|synthetic|folder|cuda|nccl|mpi|fp16|bf16|sgd|/dev/null|/proc/no|.|..""",
    ),
    *('"\\0"', "a" * 300, "1" + 26 * "0", "1" + 5000 * "0", "9" * 400 + " steps"),
]
# Bugs of the past.
CORPUS = [
    *(
        Case(["train", "--config", "c.yaml"], text.encode())
        for text in ("", "- 1", "5", "foo: 1", "data: 5", "data:", "1: 2")
    ),
    *(
        Case(["train", "--config", "c.yaml"], text)
        for text in (b"\xff\xfe", b"data: {batch_siz: 1}", b"a: [", b"? [a]\n: b")
    ),
    *(
        Case(["train", *options])
        for options in (["--config"], ["--config", "."], ["--config", ""], ["--data", "5"], ["x"])
    ),
    *(Case([command]) for command in ("evaluate", "nothing")),
    *(Case(["evaluate", "--checkpoint", *value]) for value in ([], [""], ["nowhere"], ["."])),
    Case(["train", *ONE_STEP, "--optim.warmup", "9" * 400 + " steps"]),
    Case(["shards", "--world-size", "-1"]),
    Case(["train"], variables={"LOCAL_RANK": "x", "RANK": "0", "WORLD_SIZE": "1"}),
    Case(["launch"], variables={"NPROC_PER_NODE": "x"}),
    Case(["launch"], variables={"NPROC_PER_NODE": "0"}),
]


def misspelled(name: str) -> st.SearchStrategy[str]:
    """Return the name without a letter, or with one duplicated."""
    return st.integers(0, len(name) - 1).flatmap(
        lambda at: st.sampled_from([name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:]])
    )


def cases(names: list[str]) -> st.SearchStrategy[Case]:
    """Return commands with settings as written in a hurry."""
    name = st.sampled_from(sorted(set(names) - LEFT_ALONE))
    setting = st.tuples(st.one_of(name, name, name, name.flatmap(misspelled)), st.sampled_from(VALUES))
    some = st.lists(setting, min_size=1, max_size=3)

    def in_file(chosen: list[tuple[str, str]]) -> Case:
        sections: dict[str, str] = {}
        for key, value in chosen:
            section, _, field = key.partition(".")
            sections[section] = sections.get(section, "") + f"  {field}: {value}\n"
        text = "".join(f"{section}:\n{lines}" for section, lines in sections.items())
        return Case(["train", "--config", "c.yaml", *ONE_STEP], text.encode())

    def as_options(chosen: list[tuple[str, str]]) -> Case:
        return Case(["train", *ONE_STEP, *(f"--{key}={value}" for key, value in chosen)])

    raw = st.one_of(
        st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode(errors="ignore"))
    )
    variable = st.sampled_from(
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "NPROC_PER_NODE", "NNODES"]
    )
    number = st.sampled_from(["", "x", "-1", "0", "1", "99999999", "1.5", "1" + 30 * "0"])
    return st.one_of(
        some.map(in_file),
        some.map(in_file),
        some.map(as_options),
        some.map(as_options),
        raw.map(lambda text: Case(["train", "--config", "c.yaml", *ONE_STEP], text)),
        st.builds(
            lambda command, variables: Case(command.split(), variables=variables),
            st.sampled_from(["launch --dry-run", "shards"]),
            st.dictionaries(variable, number, max_size=2),
        ),
    )


def test_any_settings_are_used_or_refused_in_one_line(install: Installer, tmp_path: Path) -> None:
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    listed = f"from {project.package}.config import *; "
    listed += (
        "print(*(f'{name}.{field}' for name, section in vars(Config()).items() for field in vars(section)))"
    )
    names = project.succeed("python3", "-c", listed).split()
    folder = tmp_path / "some" / "where"
    began = time.monotonic()
    seen = 0
    with answering(project) as ask:

        @FUZZED
        @given(cases(names))
        def judge(case: Case) -> None:
            nonlocal seen
            if time.monotonic() - began > CASES_LIMIT_S:
                return
            seen += 1
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if case.file is not None:
                (folder / "c.yaml").write_bytes(case.file)
            before = content(folder)
            answer = ask(case, folder)
            check(answer, case)
            if answer.code == 2:
                assert content(folder) == before, case

        for case in CORPUS:
            judge = example(case)(judge)
        judge()
    print(f"{seen} cases in {time.monotonic() - began:.0f} s")
    assert seen > len(CORPUS) + CASES // 4


DAMAGED = [
    "config.yaml",
    "metrics.jsonl",
    "steps.jsonl",
    "summary.json",
    "checkpoints/last_3.pt",
    "checkpoints/last_6.pt",
]


def flip(file: Path, where: float) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    if content:
        content[int(where * (len(content) - 1))] ^= 1
    file.write_bytes(content)


HOW: dict[str, Callable[[Path, float], object]] = {
    "cut": lambda file, where: os.truncate(file, int(where * file.stat().st_size)),
    "flip": flip,
    "empty": lambda file, where: file.write_bytes(b""),
    "a list": lambda file, where: file.write_text("- 1\n"),
    "a number": lambda file, where: file.write_text("5\n"),
    "not UTF-8": lambda file, where: file.write_bytes(b"\xff\xfe\x00"),
    "removed": lambda file, where: file.unlink(),
    "a copy": lambda file, where: shutil.copy(file, file.with_name(f"{file.stem} (copy){file.suffix}")),
}


def test_any_damage_to_a_run_is_repaired_or_reported_in_one_line(install: Installer, tmp_path: Path) -> None:
    """Evaluate and resume a run whose files were cut, changed in one bit, emptied, replaced, copied or removed."""
    project = install(Target("cpu", "gloo", "spawn"), tmp_path)
    short = [
        "--train.max_iterations",
        "6",
        "--train.evaluate_every",
        "3 steps",
        "--train.log_every",
        "3",
        "--train.run_dir",
        "run",
    ]
    longer = Case(["train", *short, "--train.max_iterations", "9", "--distributed.nproc_per_node", "1"])
    evaluated = Case(["evaluate", "--checkpoint", "run", "--distributed.nproc_per_node", "1"])
    with answering(project) as ask:
        assert ask(Case(["train", *short, "--distributed.nproc_per_node", "1"]), tmp_path).code == 0
        whole = tmp_path / "whole"
        (tmp_path / "run").rename(whole)
        assert {name for name in DAMAGED if not (whole / name).exists()} == set()

        @example([("checkpoints/last_6.pt", "a copy", 0.0)])
        @settings(FUZZED, max_examples=CASES // 16)
        @given(
            st.lists(
                st.tuples(st.sampled_from(DAMAGED), st.sampled_from(sorted(HOW)), st.floats(0, 1)),
                min_size=1,
                max_size=3,
            )
        )
        def judge(damages: list[tuple[str, str, float]]) -> None:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(whole, tmp_path / "run")
            for name, how, where in damages:
                file = tmp_path / "run" / name
                if file.is_file():
                    HOW[how](file, where)
            for case in (evaluated, longer):
                answer = ask(case, tmp_path)
                check(answer, (case, damages))
            # The run resumes from what is left, or starts anew.
            assert answer.code == 0, f"{damages}\n{answer.errors}"

        judge()
