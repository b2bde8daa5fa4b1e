"""From which batch on are two nodes faster than one, and does ``scaling`` predict it? ``nox -s crossover``, as root

A network of 1.2 million weights learns images of 28x28 on one node and on two, whose link is shaped to several speeds. The
larger the batch, the more two nodes share; the exchange costs the same at each. Each node has one process with one thread.
The step that is measured is compared with the one that the project predicts from what one process takes and from the link.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
sys.path.append(str(FOLDER.parent / "tests" / "facilities"))

import cluster
from my_ddl_project.config import to_options
from my_ddl_project.prediction import link_of, time_of
from my_ddl_project.profiling import WARM_UP
from page import ROOT, fill

# 5,220 Mbit/s was the link of a study that saw the crossover between batches of 128 and 256 on much faster nodes.
RATES = (5220, 500, 100)
BATCHES = (4, 16, 64, 256, 1024)
STEPS = 12
LIMIT_S = 600


class Row(NamedTuple):
    """One training."""

    nodes: int
    rate: int
    """Mbit/s"""
    batch_size: int
    milliseconds: float
    """of a step, without evaluation and checkpoint"""
    exchange: float
    """of these, those in which a process only waits for gradients"""
    backward: float
    """of these, those of the backward pass"""


def on_nodes(count: int, arguments: list[str]) -> str:
    """Run the project on so many nodes, by torchrun; return what all of them printed: rank 0 may be on any.

    Raises:
        SystemExit: if one of them failed.
    """
    rendezvous = [f"--nnodes={count}", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29500"]
    command = ["torchrun", *rendezvous, "--nproc-per-node=1", "-m", "my_ddl_project", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    started = [
        subprocess.Popen(
            [*cluster.enter(node), *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in cluster.NODES[:count]
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        sys.exit("\n".join(said))
    return "\n".join(said)


@contextmanager
def shaped(rate: int) -> Iterator[None]:
    """Let each node send so many Mbit/s and no more inside the ``with`` block."""
    tc = [["ip", "netns", "exec", cluster.namespace(node), "tc", "qdisc"] for node in cluster.NODES]
    for one in tc:
        bucket = ["tbf", "rate", f"{rate}mbit", "burst", f"{max(rate * 125, 64_000)}", "latency", "400ms"]
        subprocess.run([*one, "replace", "dev", "eth0", "root", *bucket], check=True, timeout=30)
    try:
        yield
    finally:
        for one in tc:
            subprocess.run([*one, "del", "dev", "eth0", "root"], check=False, timeout=30)


def train(nodes: int, rate: int, batch_size: int) -> tuple[Row, int]:
    """Train; return what a step took, and how many bytes of gradients there are."""
    with tempfile.TemporaryDirectory() as run_dir:
        settings = {
            "task.data": "28x28",
            "task.model": "mnist",
            "task.size": (STEPS + WARM_UP) * batch_size,
            "task.val_size": 1,
            "data.batch_size": batch_size,
            "train.run_dir": run_dir,
            "train.epochs": 1,
            "train.log_every": 1000,
            "train.profile": "basic",
        }
        on_nodes(nodes, ["train", *to_options(settings)])
        about = json.loads((Path(run_dir) / "profile" / "profile.json").read_text())
    parts: dict[str, float] = about["milliseconds"]
    row = Row(nodes, rate, batch_size, about["step_milliseconds"], parts["exchange"], parts["backward"])
    return row, int(about["gradient_bytes"])


def link_of_nodes() -> Any:
    """Return the latency and bandwidth of the link, as the project's own doctor measures them."""
    said = on_nodes(2, ["doctor", "--exchange"])
    measured = json.loads(said[said.index("{") : said.rindex("}") + 1])
    return link_of(measured, 2)


def main() -> None:
    """Train everything, and write table, numbers and figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="Mbit/s")
    options = parser.parse_args()
    if not shutil.which("tc"):
        sys.exit("tc is missing: apt-get install iproute2")
    was_there = cluster.STATE.exists()
    cluster.up(slurm=False)
    rows: list[Row] = []
    links: dict[int, Any] = {}
    size = 0
    try:
        for batch_size in options.batches:
            row, size = train(1, 0, batch_size)
            rows.append(row)
            print(row, flush=True)
        for rate in options.rates:
            with shaped(rate):
                links[rate] = link_of_nodes()
                print(rate, links[rate], flush=True)
                for batch_size in options.batches:
                    rows.append(train(2, rate, batch_size)[0])
                    print(rows[-1], flush=True)
    finally:
        if not was_there:
            cluster.down()
    found = list(compare(rows, links, size))
    write(found, links, size)


class Compared(NamedTuple):
    """A training of two nodes beside what was predicted of it, in milliseconds of a step."""

    rate: int
    batch_size: int
    one_node: float
    two_nodes: float
    nothing_hidden: float
    """predicted, if the exchange begins when the backward pass is done"""
    all_hidden: float
    """predicted, if it goes on beside the whole backward pass"""


def compare(rows: list[Row], links: dict[int, Any], size: int) -> Iterator[Compared]:
    """Yield each training of two nodes with its predictions."""
    alone = {row.batch_size: row for row in rows if row.nodes == 1}
    whole = [(row.batch_size, row.milliseconds) for row in alone.values()]
    backward = [(row.batch_size, row.backward) for row in alone.values()]
    for row in rows:
        if row.nodes == 1:
            continue
        share = row.batch_size / 2
        exchange = 1e3 * links[row.rate].ring(size, 2)
        computing, behind = time_of(share, whole), time_of(share, backward)
        hidden = computing - behind + max(behind, exchange)
        one = alone[row.batch_size].milliseconds
        yield Compared(row.rate, row.batch_size, one, row.milliseconds, computing + exchange, hidden)


def write(found: list[Compared], links: dict[int, Any], size: int) -> None:
    """Keep the numbers, the table and the figure."""
    about = {"date": datetime.date.today().isoformat(), "torch": version("torch"), "gradient_bytes": size}
    measured = {str(rate): link.bandwidth * 8e-6 for rate, link in links.items()}
    numbers = {**about, "Mbit/s": measured, "steps": [one._asdict() for one in found]}
    (RESULTS / "crossover.json").write_text(json.dumps(numbers, indent=1) + "\n")
    lines = [
        f"Milliseconds of a step; {size // 4:,} weights, torch {about['torch']}, {about['date']}.",
        "",
        "| link, Mbit/s (as measured) | batch | one node | two nodes | faster | predicted, nothing hidden | all hidden |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        predictions = " | ".join(
            f"{shown(value)} ({value / one.two_nodes - 1:+.0%})"
            for value in (one.nothing_hidden, one.all_hidden)
        )
        lines.append(
            f"| {one.rate} ({measured[str(one.rate)]:.0f}) | {one.batch_size} | {shown(one.one_node)} "
            f"| {shown(one.two_nodes)} | {one.one_node / one.two_nodes:.2f} | {predictions} |"
        )
    fill("crossover", lines)
    draw(found, ROOT / "docs" / "crossover.png")


def shown(milliseconds: float) -> str:
    """Return a time to three figures, or to the millisecond."""
    return f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"


def draw(found: list[Compared], path: Path) -> None:
    """Draw the speed of two nodes as a part of that of one, over the batch, one line for each link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for rate in dict.fromkeys(one.rate for one in found):
        line = [(one.batch_size, one.one_node / one.two_nodes) for one in found if one.rate == rate]
        axes.plot(*zip(*line, strict=True), marker=".", label=f"{rate:,} Mbit/s")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xlabel="global batch", ylabel="times as fast as one node", xscale="log", ylim=(0, None))
    axes.legend(title="link between the nodes")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
