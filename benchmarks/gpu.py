"""Is the rendered project as fast on a GPU as a loop that is written by hand for it? The last part of ``nox -s gpu``.

Both train the GPT of the task language-modeling on one GPU, in bf16, compiled, in turns; the loop is peers/gpt_by_hand.py.
Without a GPU, a far smaller one on the CPU, which shows no more than that it runs. Results are kept in benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMIT_S = 300


def settings_of(device: str) -> dict[str, object]:
    """Return the settings of both: on a GPU, the layers of the smallest GPT-2, which are 86 million weights with bytes as tokens."""
    large = {"context": 1024, "width": 768, "layers": 12, "heads": 12, "train_tokens": 4_000_000}
    small = {"context": 64, "width": 64, "layers": 2, "heads": 4, "train_tokens": 1_000_000}
    return {
        **{f"task.{name}": value for name, value in (large if device == "cuda" else small).items()},
        "data.batch_size": 16,
        "train.max_iterations": 120,
        "train.amp": "bf16",
        "train.compile": "true",
        "train.evaluate_every": "1000 steps",
        "train.log_every": 20,
    }


def output_of(command: list[str], environment: dict[str, str]) -> str:
    """Run a command to its end; return what it printed.

    Raises:
        SystemExit: if it failed.
    """
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, list[float]] = {"rendered project": [], "loop by hand": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bake = [
            "cookiecutter",
            "--no-input",
            "--output-dir",
            name,
            str(ROOT),
            "hardware=gpu",
            "task=language-modeling",
        ]
        subprocess.run(bake, check=True, timeout=LIMIT_S)
        environment = os.environ | {
            "PYTHONPATH": str(folder / "my-ddl-project" / "src"),
            "OMP_NUM_THREADS": "1",
        }
        os.chdir(folder / "my-ddl-project")
        words = [word for key, value in settings_of(device).items() for word in (f"--{key}", str(value))]
        place = [] if device == "cuda" else ["--distributed.device", "cpu"]
        package = [sys.executable, "-m", "my_ddl_project", "train", *place, *words]
        by_hand = [sys.executable, str(ROOT / "benchmarks/peers/gpt_by_hand.py"), "--device", device, *words]
        for number in range(options.rounds):
            run_dir = f"runs/{number}"
            output_of([*package, "--train.run_dir", run_dir], environment)
            lines = [json.loads(line) for line in Path(run_dir, "steps.jsonl").read_text().splitlines()]
            # The first lines have the compiling in them.
            found["rendered project"].append(
                statistics.median(line["samples_per_second"] for line in lines[2:])
            )
            said = output_of(by_hand, environment)
            found["loop by hand"].append(float(re.findall(r"samples/s ([\d.]+)", said)[-1]))
    ratios = [ours / theirs for ours, theirs in zip(*found.values(), strict=True)]
    name = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    result = {
        "device": name,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "date": datetime.date.today().isoformat(),
        "settings": settings_of(device),
        "samples_per_second": found,
        "ratio": statistics.median(ratios),
    }
    print(json.dumps(result, indent=1))
    (RESULTS / f"gpt-{device}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
