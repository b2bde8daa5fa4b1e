"""Let the best model of a run write on: python3 -m {{ cookiecutter.package_name }}.task.generate RUN_DIR [BEGINNING]."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import yaml

from ..handlers import load_checkpoint
from .model import GPT
from .settings import TaskConfig


def generate(run_dir: Path, beginning: str, length: int = 400, temperature: float = 0.8, seed: int = 0) -> str:
    """Return ``beginning`` and ``length`` bytes more, drawn one by one; the lower the temperature, the more likely ones."""
    settings = TaskConfig(**yaml.safe_load((run_dir / "config.yaml").read_text())["task"])
    model = GPT(settings).eval()
    (best,) = (run_dir / "checkpoints").glob("best_*.pt")
    load_checkpoint(best, {"model": model})
    generator = torch.Generator().manual_seed(seed)
    tokens = list(beginning.encode())
    with torch.no_grad():
        for _ in range(length):
            scores = model(torch.tensor([tokens[-settings.context :]]))[0, -1]
            chances = torch.softmax(scores / temperature, dim=0)
            tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    return bytes(tokens).decode(errors="replace")


if __name__ == "__main__":
    print(generate(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "def "))
