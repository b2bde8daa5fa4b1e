"""The GPT of the task language-modeling, trained on one device by as little as it takes: what a researcher writes by hand."""

import argparse
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from my_ddl_project.task.data import load
from my_ddl_project.task.model import create_model
from my_ddl_project.task.settings import TaskConfig
from torch.nn.functional import cross_entropy


def main() -> None:
    """Print the samples per second of every twenty steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    for item in fields(TaskConfig):
        parser.add_argument(
            f"--task.{item.name}", dest=item.name, type=type(item.default or ""), default=item.default
        )
    parser.add_argument("--data.batch_size", dest="batch_size", type=int)
    parser.add_argument("--train.max_iterations", dest="steps", type=int)
    given, _ = parser.parse_known_args()
    options: Any = vars(given)
    device, batch_size = options["device"], options["batch_size"]
    settings = TaskConfig(**{item.name: options[item.name] for item in fields(TaskConfig)})
    torch.manual_seed(0)
    data = load(settings)
    tokens = np.memmap(Path(data.train.file), np.uint8, "r")
    model = create_model(settings, data).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), fused=True)
    compiled: Any = torch.compile(model)
    chance = np.random.default_rng(0)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = chance.integers(settings.val_tokens, len(tokens) - settings.context - 1, batch_size)
        windows = torch.from_numpy(tokens[starts[:, None] + np.arange(settings.context + 1)].astype(np.int64))
        if device == "cuda":
            windows = windows.pin_memory().to(device, non_blocking=True)
        return windows[:, :-1], windows[:, 1:]

    since = time.perf_counter()
    following = batch()
    for step in range(1, options["steps"] + 1):
        inputs, targets = following
        with torch.autocast(device, torch.bfloat16):
            loss = cross_entropy(compiled(inputs).flatten(0, 1), targets.flatten())
        # While the device computes.
        following = batch()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            value, now = float(loss), time.perf_counter()
            print(f"step {step} loss {value:.4f} samples/s {20 * batch_size / (now - since):.2f}")
            since = now


if __name__ == "__main__":
    main()
