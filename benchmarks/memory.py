"""What do more processes of one machine need for data that are mapped from a file? Part of ``nox -s benchmark``.

The pages of a mapped file are the machine's, not a process's. Each process maps the same file of tokens and reads a part of
it; the memory of the mapping is counted once for all of them: Linux gives each page's share of it to each process that has it
(Pss). The table is in docs/benchmarks.md.
"""

import datetime
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from my_ddl_project.config import to_options
from page import fill
from throughput import LIMIT_S

PROCESSES = (1, 2, 4)
TOKENS = 128
SAMPLES = 2**19
# A sixth of the samples, at random, is on nearly every page of the file.
STEPS = 40
WORKERS = 1
"""loader processes of each process"""


def pss_mib(started: psutil.Process, file: Path) -> tuple[float, float]:
    """Return the MiB that all that a process has started have of the mapped file, and of everything else."""
    mapped = other = 0
    for process in started.children(recursive=True):
        with suppress(psutil.Error):  # It may have ended.
            for one in process.memory_maps():
                mapped += one.pss * (one.path == str(file))
                other += one.pss * (one.path != str(file))
    return mapped / 2**20, other / 2**20


def measure(folder: Path, processes: int) -> tuple[float, float]:
    """Return the most MiB that a training of so many processes had of the mapped file, and of everything else."""
    settings = {
        "task.data": "tokens",
        "task.model": "bigram",
        "task.width": 16,
        "task.size": SAMPLES - 1024,
        "task.val_size": 256,
        "task.folder": folder,
        "data.batch_size": 2048,
        "data.num_workers": WORKERS,
        "train.max_iterations": STEPS,
        "train.run_dir": folder / f"run-{processes}",
    }
    launcher = ["torchrun", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, "-m", "my_ddl_project", "train", *to_options(settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    most = (0.0, 0.0)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + LIMIT_S
        while process.poll() is None:
            if time.monotonic() > until:
                process.terminate()
            mapped, other = pss_mib(psutil.Process(process.pid), folder / "tokens")
            most = max(most[0], mapped), max(most[1], other)
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return most


def main() -> None:
    """Measure and write the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokens").write_bytes(bytes(range(256)) * (SAMPLES * TOKENS // 256))
        found = {processes: measure(folder, processes) for processes in PROCESSES}
    fill(
        "memory",
        [
            f"A file of {SAMPLES * TOKENS >> 20} MiB, and {WORKERS} loader process for each process; {datetime.date.today().isoformat()}.",
            "",
            "| processes | MiB of the file | MiB of everything else |",
            "|---|---|---|",
            *(
                f"| {processes} | {mapped:.0f} | {other:.0f} |"
                for processes, (mapped, other) in found.items()
            ),
        ],
    )


if __name__ == "__main__":
    main()
