"""Predictions of a trained model for new inputs."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

from ...config import Config
from ...runtime import Run, Task, UsageError
from ...runtime.process.start import find_packs
from ...runtime.state import to_json
from ...task import load_task


def predict(config: Config, options: dict[str, Any]) -> int:
    """Print what ``predict(model, data, inputs)`` of task/predict.py yields, as lines of JSON.

    Raises:
        UsageError: if the task has no such module.
    """
    if importlib.util.find_spec("...task.predict", __package__) is None:
        raise UsageError(
            "task/predict.py is missing. Define predict(model, data, inputs) there, as docs/export.md shows.", 1
        )
    task, model = load_model(config, options["checkpoint"])
    predictions = importlib.import_module("...task.predict", __package__).predict
    with torch.no_grad():
        for prediction in predictions(model, task.data, options["inputs"]):
            print(to_json(prediction), flush=True)
    return 0


def load_model(config: Config, checkpoint: str) -> tuple[Task, torch.nn.Module]:
    """Return the task, and the model of a checkpoint on the CPU in eval mode."""
    for pack in find_packs():
        # A pack may have another format of checkpoints.
        getattr(pack, "configure", lambda config: None)(config)
    task = load_task(config.task)
    model = task.create_model()
    Run.load(checkpoint, model)
    return task, model.eval()
