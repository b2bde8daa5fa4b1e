"""The snippets of docs/your-own-task.md and docs/how-do-i.md work as they stand."""

import json
import os
import pty
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from baking import Target
from conftest import Bake
from installing import Installed, Installer

pytestmark = [pytest.mark.executed, pytest.mark.thorough]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGET = Target("cpu", "gloo", "torchrun")

# The table of the page.
DATA = """\
import numpy as np
from pathlib import Path
rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
rows[:, 3] = rows[:, 0] - 2 * rows[:, 1]
Path("data").mkdir()
np.savetxt("data/table.csv", rows, delimiter=",", header="a,b,c,target", comments="")
"""
# What the page says without a snippet: batches as dictionaries, several validation sets, collate with the settings.
OTHER_DATA = """

from datasets import Dataset
from torch.utils.data import default_collate

_load = load


def load(settings: TaskConfig) -> Any:
    found = _load(settings)
    train, val = (
        Dataset.from_dict({"rows": part.tensors[0].numpy(), "wanted": part.tensors[1].numpy()}).with_format("torch")
        for part in (found.train, found.val)
    )
    return found._replace(train=train, val={"": val, "first": val.select(range(50))})


def collate(samples: Any, settings: TaskConfig) -> Any:
    batch = default_collate(samples)
    return batch["rows"], batch["wanted"] + 0 * settings.width
"""
# Code that uses what a snippet only defines, by question: the file, and what to add.
USES = {
    "Augment the data": (
        "task/data.py",
        "_load = load\n\n\ndef load(settings):\n    data = _load(settings)\n    return data._replace(train=Noisy(data.train))",
    ),
    "Draw samples by weight": (
        "task/data.py",
        """_load = load\n\n\ndef load(settings):\n    data = _load(settings)
    weights = (data.train.tensors[1] > 0.5).double() + 1e-9
    return data._replace(train=Weighted(data.train, weights))""",
    ),
    "Read a stream": (
        "task/data.py",
        "_load = load\n\n\ndef load(settings):\n    return _load(settings)._replace(train=Stream(1200))",
    ),
    "Recompute activations to save memory": (
        "task/model.py",
        "_create = create_model\n\n\ndef create_model(settings, data):\n    return Recomputed(*_create(settings, data))",
    ),
}
# Sections whose run is the same on one process and two, and over a resume: the metrics at its end, to be seen to change
# if the code that they test does not work.
HOLDS: dict[str, dict[str, float]] = {
    "Use two learning rates": {},
    "Unfreeze layers at a step": {"train_loss": 0.105355},
    "Lower the learning rate when the score stalls": {"lr": 0.001},
    "Use a schedule of ignite": {"train_loss": 0.101694},
    "Compare all samples of the global batch": {"train_loss": 4.12122, "val_loss": 5.23885},
    "Evaluate without a loss": {"val_error": 0.26562},
    "Learn from gradients, such as forces": {"val_loss": 0.223968, "val_error": 1.17099},
    "Draw samples by weight": {"train_loss": 0.0244289, "val_loss": 0.691381},
    "Batch samples of similar length": {"train_loss": 0.0609412, "val_loss": 0.122283},
    "Read a stream": {"train_loss": 0.02578, "val_loss": 0.158904},
    "Evaluate on several sets, and on a test set": {"val_error": 0.243722, "val_far_error": 0.238598},
}
SHORT = [
    "--train.max_iterations=24",
    "--train.evaluate_every=8 steps",
    "--train.log_every=2",
    "--optim.warmup=4 steps",
]
# A file that an answer leaves, and what it says.
LEAVES = {
    "Resume a run": ("runs/smoke/log.txt", "resumed from runs/smoke/checkpoints/last_20.pt at step 20"),
    "Add a metric": ("runs/default/metrics.jsonl", "val_squared_error"),
    "Evaluate on several sets, and on a test set": ("runs/default/metrics.jsonl", "val_far_error"),
    "Log another value": ("runs/default/steps.jsonl", "weight_norm"),
    "Profile a run": ("runs/smoke/profile/trace-rank0.json", "traceEvents"),
    "Stop early": ("runs/default/config.yaml", "patience: 5"),
}


def sections(page: str, level: int) -> dict[str, list[tuple[str, str]]]:
    """Return the language and text of each block by the title of its section."""
    parts = re.split(rf"^{'#' * level} (.+)\n", page, flags=re.MULTILINE)
    return {title: BLOCK.findall(content) for title, content in zip(parts[1::2], parts[2::2], strict=True)}


def put(project: Installed, language: str, block: str) -> None:
    """Change a file as the first line of a block says: a new file, a part of one, or a diff."""
    first, _, content = block.partition("\n")
    place = re.fullmatch(r"# (in )?(\S+)", first)
    assert place, first
    file = project.path / place[2]
    if language == "diff":
        text = file.read_text()
        for hunk in content.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in marks) for marks in (" -", " +"))
            assert text.count(old) == 1, f"{file.name} does not have\n{old}"
            text = text.replace(old, new)
        file.write_text(text)
    elif not place[1]:
        file.write_text(content)
    elif language == "yaml":
        text, count = re.subn(r"^task:\n(  .*\n)+", content, file.read_text(), flags=re.MULTILINE)
        assert count == 1
        file.write_text(text)
    else:
        # A later definition replaces an earlier one of the same name.
        add(file, content)


def use(project: Installed, title: str) -> None:
    """Use what the snippets of a section only define."""
    name, code = USES[title]
    add(project.path / "src" / project.package / name, code)


def add(file: Path, code: str) -> None:
    """Append code to a file."""
    file.write_text(f"{file.read_text()}\n\n{code}\n")


def results(project: Installed, run: str) -> dict[str, Any]:
    """Return the metrics of a finished run."""
    summary = project.read_json(f"runs/{run}/summary.json")
    assert summary["weights_difference"] == 0.0
    return {name: value for name, value in summary.items() if name.startswith("val_")}


def test_a_task_of_your_own_is_learned_and_the_tests_of_the_project_pass(
    bake: Bake, install: Installer, tmp_path: Path
) -> None:
    project = install(TARGET, tmp_path)
    project.succeed("python3", "-c", DATA)
    for blocks in sections(bake(**TARGET._asdict()).read("docs/your-own-task.md"), 2).values():
        for language, block in blocks:
            if language == "bash":
                project.succeed("bash", "-ec", block)
            else:
                put(project, language, block)
    one, two = results(project, "one"), results(project, "two")
    # The mean of the targets is 1.8 off on average.
    assert one["val_error"] < 0.2
    assert one == pytest.approx(two, rel=1e-3)
    # It is about the old task: for the user to replace.
    (project.path / "tests" / "test_task.py").unlink()
    quietly = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    chosen = [
        "tests/test_settings.py",
        "tests/test_training.py",
        "-k",
        "test_settings or one_learns or evaluate or directory or nan",
    ]
    print(project.succeed(*quietly, *chosen))
    for check in (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",)):
        project.succeed(*check)
    # Not into the environment, which other tests share.
    hub = project.path / "hub"
    project.succeed("uv", "pip", "install", "--quiet", "--target", str(hub), "datasets>=4,<5")
    project.environment["PYTHONPATH"] += f":{hub}"
    add(project.path / "src" / project.package / "task/data.py", OTHER_DATA)
    same = ("--optim.lr", "0.01", "--data.num_workers", "1", "--train.run_dir", "runs/other")
    project.succeed("scripts/train.sh", *same)
    other = results(project, "other")
    assert other.keys() == {*two, "val_first_loss", "val_first_error"}
    assert {name: other[name] for name in two} == pytest.approx(two)


def test_every_answer_of_how_do_i_works(bake: Bake, install: Installer, tmp_path: Path) -> None:
    """On the smallest task, whose metrics are those of the page. test_answers.py updates projects."""
    project = install(TARGET, tmp_path, task="minimal")
    page, _, updates = (
        bake(**TARGET._asdict(), task="minimal").read("docs/how-do-i.md").partition("## Change the project")
    )
    assert updates
    default = project.path / "configs/default.yaml"
    default.write_text(default.read_text().replace("epochs: 20", "epochs: 3"))
    original, failed = Path(shutil.copytree(project.path, tmp_path / "original")), {}
    for title, blocks in sections(page, 3).items():
        shutil.rmtree(project.path)
        shutil.copytree(original, project.path)
        commands = [block for language, block in blocks if language == "bash"]
        try:
            for language, block in blocks:
                if language == "bash":
                    project.succeed("bash", "-ec", block)
                else:
                    put(project, language, block)
            if title in USES:
                use(project, title)
                project.succeed("scripts/train.sh")
            elif commands:
                assert list(project.path.glob("runs/*/summary.json"))
            file, text = LEAVES.get(title, ("README.md", ""))
            assert text in (project.path / file).read_text()
        except (AssertionError, OSError) as error:
            failed[title] = str(error)
    assert not failed, "\n".join(f"{title}: {error}" for title, error in failed.items())
    assert {*USES, *LEAVES} <= sections(page, 3).keys()


def holds(project: Installed, title: str) -> None:
    """Train on one process, on two, and on two with a stop and a resume; all must learn the same."""
    train = ["train", *SHORT]
    module = ["python3", "-m", project.package]
    resumed = ["--train.run_dir=runs/resumed", "--data.num_workers=1"]
    several = ["torchrun", "--nproc-per-node=2"]
    project.succeed(*module, *train, "--distributed.nproc_per_node=1", "--train.run_dir=runs/one")
    project.succeed(*several, "-m", project.package, *train, "--train.run_dir=runs/two")
    stopped = project.run(*several, "tests/interrupted.py", *train, *resumed, extra={"SIGNAL": "TERM@13"})
    assert "stopped by a signal after step 14" in stopped.stderr, stopped.stderr
    # Killed after an evaluation that its last checkpoint does not contain.
    project.run(*several, "tests/interrupted.py", *train, *resumed, extra={"SIGNAL": "KILL@17"})
    project.succeed(*several, "-m", project.package, *train, *resumed)
    one, two, resumed_two = (learned(project, name) for name in ("one", "two", "resumed"))
    assert resumed_two == two
    assert one["metrics.jsonl"] == [pytest.approx(record, rel=1e-4) for record in two["metrics.jsonl"]]
    assert one["steps.jsonl"] == [pytest.approx(record, rel=1e-3) for record in two["steps.jsonl"]]
    last = one["metrics.jsonl"][-1]
    assert {name: last[name] for name in HOLDS[title]} == pytest.approx(HOLDS[title], rel=1e-3), last


# A model whose hook is a closure over the model itself: that of a copy would change the original.
HOOKED = """

_create = create_model


class Hooked(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.kept = net, 0.0
        net[1].register_forward_hook(lambda module, inputs, output: setattr(self, "kept", output.mean(1)))

    def forward(self, inputs):
        return self.net(inputs) * (1 + self.kept)


def create_model(settings, data):
    return Hooked(_create(settings, data))
"""


def test_averaged_weights_are_evaluated_in_the_model_itself(minimal: Installed) -> None:
    add(minimal.path / "src" / minimal.package / "task/model.py", HOOKED)
    module = ["python3", "-m", minimal.package]
    minimal.succeed(*module, "train", *SHORT, "--optim.ema_decay=0.9", "--train.run_dir=runs/one")
    checkpoint = "runs/one/checkpoints/last_24.pt"
    found = json.loads(minimal.succeed(*module, "evaluate", "--checkpoint", checkpoint).splitlines()[-1])
    recorded = learned(minimal, "one")["metrics.jsonl"][-1]
    assert (found["val_loss"], found["val_error"]) == (recorded["val_loss"], recorded["val_error"])


# A buffer that the first forward pass creates.
LAZY = """

_create_whole = create_model


class Lazy(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("center", None)

    def forward(self, inputs):
        if self.center is None:
            self.center = inputs.detach().mean(0)
        return self.net(inputs - self.center)


def create_model(settings, data):
    return Lazy(_create_whole(settings, data))
"""


def test_a_buffer_that_the_first_step_creates_is_refused(minimal: Installed) -> None:
    add(minimal.path / "src" / minimal.package / "task/model.py", LAZY)
    done = minimal.run("python3", "-m", minimal.package, "train", "--config", "configs/smoke.yaml")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the first step changed center in the model's")


def test_a_debugger_without_a_terminal_and_data_that_no_worker_gets_are_explained(minimal: Installed) -> None:
    smoke = ["scripts/train.sh", "--config", "configs/smoke.yaml"]
    package = minimal.path / "src" / minimal.package
    step, data = package / "step.py", package / "task/data.py"
    original = step.read_text()
    step.write_text(
        original.replace("        self.optimizer.zero", "        breakpoint()\n        self.optimizer.zero")
    )
    last = minimal.run(*smoke).stderr.splitlines()[-1]
    assert "the debugger was left, or has no terminal" in last and "Traceback" not in last
    step.write_text(original)
    opened = "_load = load\n\n\ndef load(settings):\n    data = _load(settings)\n    data.train.file = open('README.md')"
    add(data, f"{opened}\n    return data")
    done = minimal.run(*smoke, "--data.num_workers=1")
    assert "cannot pickle '_io.TextIOWrapper' object). Open files on first use" in done.stderr
    assert "Traceback" not in done.stderr


def test_rank_0_of_two_can_be_debugged(minimal: Installed) -> None:
    title = "Debug with breakpoint()"
    prepare(minimal, title, sections((minimal.path / "docs/how-do-i.md").read_text(), 3)[title])
    settings = ["--config=configs/smoke.yaml", "--train.max_iterations=1", "--distributed.nproc_per_node=2"]
    command = ["python3", "-m", minimal.package, "train", *settings]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(minimal.path)
        os.execvpe(command[0], command, {**minimal.environment, "TTY": os.ttyname(0)})
    seen = b""
    # Reading fails when the other end is closed.
    with suppress(OSError):
        while text := os.read(terminal, 4096):
            seen += text
            if text.rstrip().endswith(b"(Pdb)"):
                os.write(terminal, b"p 40 + engine.state.iteration\n" if b"41" not in seen else b"c\n")
    assert os.waitpid(pid, 0)[1] == 0, seen.decode()
    assert b"(Pdb) p 40" in seen and b"41" in seen


# Optimizers that delegate: the first loses the momentum when it is restored.
WRAPPING = """


class Wrapper(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups, lr, momentum=0.9)
        self.param_groups = self.inner.param_groups

    def step(self, closure=None):
        self.inner.step()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.inner.param_groups = self.param_groups


class Whole(Wrapper):
    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)
        self.param_groups = self.inner.param_groups


def create_optimizer(model, config):
    return Wrapper(model.parameters(), config.optim.lr)
"""


def test_an_optimizer_that_loses_its_state_is_refused(minimal: Installed) -> None:
    objective = minimal.path / "src" / minimal.package / "task/objective.py"
    add(objective, WRAPPING)
    command = ["python3", "-m", minimal.package, "train", "--config", "configs/smoke.yaml"]
    done = minimal.run(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: a resume would change how Wrapper updates 0.weight."
    )
    objective.write_text(objective.read_text().replace("return Wrapper(", "return Whole("))
    minimal.succeed(*command)


def test_schedules_of_torch_and_ignite_resume(minimal: Installed) -> None:
    script = str(Path(__file__).with_name("schedules.py"))
    assert minimal.succeed("python3", script, minimal.package) == ""


def test_a_test_set_is_read_by_its_split_alone(minimal: Installed) -> None:
    module = ["python3", "-m", minimal.package]
    minimal.succeed(*module, "train", "--config", "configs/smoke.yaml")
    evaluate = [*module, "evaluate", "--checkpoint", "runs/smoke"]
    lacking = minimal.run(*evaluate, "--split", "test")
    assert lacking.returncode == 2 and "returned no test set" in lacking.stderr
    title = "Evaluate on several sets, and on a test set"
    prepare(minimal, title, sections((minimal.path / "docs/how-do-i.md").read_text(), 3)[title])
    # The test set as a validation set has the same metrics.
    one, two = (
        json.loads(minimal.succeed(*evaluate, "--split", "test", *processes).splitlines()[-1])
        for processes in ([], ["--distributed.nproc_per_node", "2"])
    )
    assert one.keys() == {"checkpoint", "test_loss", "test_error"}
    assert one == pytest.approx(two)
    data = minimal.path / "src" / minimal.package / "task/data.py"
    data.write_text(data.read_text().replace('val={"": near', 'val={"": test'))
    val = json.loads(minimal.succeed(*evaluate).splitlines()[-1])
    assert (val["val_loss"], val["val_error"]) == (one["test_loss"], one["test_error"])


def learned(project: Installed, run: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a run, without what differs each time."""
    timed = {"samples_per_second", "data_wait"}
    return {
        name: [
            {key: value for key, value in json.loads(line).items() if key not in timed}
            for line in (project.path / "runs" / run / name).read_text().splitlines()
        ]
        for name in ("metrics.jsonl", "steps.jsonl")
    }


def prepare(project: Installed, title: str, blocks: list[tuple[str, str]]) -> None:
    """Change the files as the snippets of a section say."""
    for language, block in blocks:
        if language != "bash":
            put(project, language, block)
    if title in USES:
        use(project, title)


@pytest.fixture
def minimal(install: Installer, tmp_path: Path) -> Installed:
    """The smallest task."""
    return install(TARGET, tmp_path, task="minimal")


@pytest.mark.parametrize("title", HOLDS)
def test_an_answer_holds_on_two_processes_and_over_a_resume(minimal: Installed, title: str) -> None:
    page = (minimal.path / "docs/how-do-i.md").read_text()
    prepare(minimal, title, sections(page, 3)[title])
    holds(minimal, title)


# Writes files of weights: of a wrapped model with another shape and an extra weight, and of nothing.
WEIGHTS = """\
import torch
from safetensors.torch import save_file
weights = torch.load("runs/smoke/checkpoints/last_20.pt", weights_only=True)["model"]
save_file(weights, "all.safetensors")
changed = {f"module.{name}": value for name, value in weights.items()}
changed["module.0.bias"], changed["module.extra"] = torch.ones(3), torch.ones(2)
del changed["module.2.bias"]
torch.save({"state_dict": changed, "epoch": 3}, "some.pt")
torch.save({"other": torch.ones(2)}, "other.pt")
"""
COMPARE = """\
import sys, torch
first, second = (torch.load(file, weights_only=True)["model"] for file in sys.argv[1:])
print(*(name for name in first if torch.equal(first[name], second[name])))
"""


def test_a_run_starts_from_weights_once(minimal: Installed) -> None:
    def start(run: str, *settings: str) -> Any:
        # Such steps change nothing.
        still = ["--optim.lr=1e-30", "--optim.weight_decay=0", "--train.max_iterations=2", *settings]
        processes = ["--distributed.nproc_per_node", "2" if run == "folder" else "1"]
        command = ["train", f"--train.run_dir=runs/{run}", *still, *processes]
        return minimal.run("python3", "-m", minimal.package, *command)

    def same(run: str, other: str) -> set[str]:
        files = [
            next((minimal.path / f"runs/{name}/checkpoints").glob(kind))
            for name, kind in ((run, "last_2.pt"), (other, "last_20.pt"))
        ]
        return {*minimal.succeed("python3", "-c", COMPARE, *map(str, files)).split()}

    names = {"0.weight", "0.bias", "2.weight", "2.bias"}
    minimal.succeed("scripts/train.sh", "--config", "configs/smoke.yaml")
    hub = minimal.path / "hub"
    minimal.succeed("uv", "pip", "install", "--quiet", "--target", str(hub), "--no-deps", "safetensors")
    assert "No module named 'safetensors'" in start("lacks", "--train.init_from=all.safetensors").stderr
    minimal.environment["PYTHONPATH"] += f":{hub}"
    minimal.succeed("python3", "-c", WEIGHTS)
    assert start("all", "--train.init_from=all.safetensors").returncode == 0
    assert same("all", "smoke") == names
    assert start("folder", "--train.init_from=runs/smoke").returncode == 0
    assert same("folder", "smoke") == names
    done = start("some", "--train.init_from=some.pt")
    assert done.returncode == 0, done.stderr
    assert same("some", "smoke") == {"0.weight", "2.weight"}
    for line in ("is not in the file: 2.bias", "is not in the model: extra", "has another shape: 0.bias"):
        assert line in done.stderr
    refused = start("other", "--train.init_from=other.pt")
    assert refused.returncode == 2 and "has no weight of this model: it has other" in refused.stderr
    (minimal.path / "some.pt").unlink()
    resumed = start("some", "--train.init_from=some.pt", "--train.max_iterations=4")
    assert resumed.returncode == 0 and "resumed from" in resumed.stderr, resumed.stderr
    assert "cannot be read" in start("new", "--train.init_from=some.pt").stderr
