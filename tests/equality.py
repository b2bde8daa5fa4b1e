"""Train as plainly as torch can, then say how far the project's own training ended from it.

Run inside the environment of a rendered project: ``python3 equality.py PACKAGE RUN_DIR``, where RUN_DIR holds a
training with the settings of ``SETTINGS``. Prints one JSON object.
"""

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

# What the training to compare with was given, beside these defaults: seed 0, no learning-rate scaling.
STEPS, BATCH_SIZE, LR = 44, 64, 0.05
# It has learned to read the digits by then, after two whole epochs.
VAL_ACCURACY = 0.95
SETTINGS = {
    "data.batch_size": BATCH_SIZE,
    "optim.name": "sgd",
    "optim.lr": LR,
    "optim.weight_decay": 0,
    "optim.warmup": "0steps",
    "train.max_iterations": STEPS,
}


def main() -> None:
    """Compare and print."""
    # Loaded by name, as this file is also read where there is no torch.
    torch: Any = importlib.import_module("torch")
    package, run_dir = sys.argv[1], Path(sys.argv[2])
    config = importlib.import_module(f"{package}.config")
    sampling = importlib.import_module(f"{package}.runtime.data")
    task_data = importlib.import_module(f"{package}.task.data")
    task_model = importlib.import_module(f"{package}.task.model")

    torch.set_num_threads(1)
    settings = config.Config().task
    data = task_data.load(settings)
    torch.manual_seed(0)
    model = task_model.create_model(settings, data)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, nesterov=True)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LR / 2 * (1 + math.cos(math.pi * step / STEPS))
        batches = sampling.TrainBatches(len(data.train), BATCH_SIZE, 0, 1, 0)
        batches.start_at(step)
        images, labels = data.train.__getitems__(next(iter(batches)).indices, None)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        images, labels = data.val.__getitems__(list(range(len(data.val))), None)
        scores = model(images)
        val_loss = float(torch.nn.functional.cross_entropy(scores, labels))
        val_accuracy = float((scores.argmax(1) == labels).float().mean())

    (checkpoint,) = (run_dir / "checkpoints").glob(f"last_{STEPS}.pt")
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    record = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    difference = max(
        float((weights[name] - tensor).abs().max()) for name, tensor in model.state_dict().items()
    )
    answer = {
        "torch": torch.__version__,
        "weights": difference,
        "val_loss": abs(record["val_loss"] - val_loss),
        "val_accuracy": abs(record["val_accuracy"] - val_accuracy),
        "first_weight": next(iter(model.parameters())).flatten()[0].item(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
