"""Is the rendered project as fast as a loop written by hand? ``nox -s benchmark``

Both train the same model on the same data with two gloo processes, in turns, because the machine's speed drifts; the
table gives samples per second and the median of the ratios of each round. Results are kept in benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
LIMIT_S = 300

# name: dataset, training samples, width of the model, global batch, epochs
CASES = {
    "digits, width 32": ("digits", 1437, 32, 64, 15),
    "digits, width 8, batch 16": ("digits", 1437, 8, 16, 8),
    "synthetic 32x32, width 32": ("synthetic", 1024, 32, 64, 8),
}


def by_hand(dataset: str, size: int, width: int, batch_size: int, epochs: int) -> float:
    """Return the samples per second of the loop written by hand."""
    options = [f"--dataset={dataset}", f"--size={size}", f"--width={width}"]
    options += [f"--batch-size={batch_size}", f"--epochs={epochs}"]
    return float(output([*TORCHRUN, str(FOLDER / "by_hand.py"), *options]).split()[-1])


def rendered(dataset: str, size: int, width: int, batch_size: int, epochs: int) -> float:
    """Return the samples per second of the rendered project, its first epoch aside."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "task.dataset": dataset,
            "task.synthetic_size": size,
            "data.batch_size": batch_size,
            "task.width": width,
            "train.epochs": epochs,
            "train.run_dir": folder,
        }
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        output([*TORCHRUN, "-m", "my_ddl_project", "train", *options])
        records = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()[1:]]
        # Harmonic: every epoch has the same number of samples.
        return statistics.harmonic_mean([float(record["samples_per_second"]) for record in records])


def output(command: list[str]) -> str:
    """Run a command to its end and return what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def main() -> None:
    """Run every case in turns and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=CASES, help="only print this one")
    options = parser.parse_args()
    rounds = options.rounds
    machine = f"torch {version('torch')}, Python {platform.python_version()}, {os.cpu_count()} CPU cores"
    lines = [
        f"Samples per second of two gloo processes: median of {rounds} rounds in turns (lowest to highest), and the\n",
        "median of the ratios of each round.\n",
        f"{machine}, {datetime.date.today().isoformat()}.\n\n",
        "| case | rendered project | loop by hand | ratio |\n|---|---|---|---|\n",
    ]
    for name in [options.case] if options.case else CASES:
        case = CASES[name]
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            # Whoever comes second may find a warmer machine.
            turns = ((rendered, ours), (by_hand, theirs))
            for measure, speeds in turns if number % 2 else reversed(turns):
                speeds.append(measure(*case))
        ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
        cells = [
            f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"
            for speeds in (ours, theirs)
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |\n")
        print(lines[-1], end="", flush=True)
    if not options.case:
        (FOLDER / "results" / "throughput-cpu.md").write_text("".join(lines))


if __name__ == "__main__":
    main()
