"""Export: a trained model as a program and as weights, and predictions for new inputs. docs/export.md."""

from __future__ import annotations

from typing import Any

from ...runtime import Command

FOLDER: dict[str, dict[str, Any]] = {
    "--folder": {"help": "where to write the model; export in the run directory if omitted"}
}
INPUTS: dict[str, dict[str, Any]] = {
    "inputs": {"nargs": "+", "help": "inputs of predict in task/predict.py, such as files"}
}

COMMANDS = {
    "export": Command(
        "Write the model of a checkpoint for use with torch alone.",
        "packs.export.program:export",
        FOLDER,
        of_checkpoint=True,
    ),
    "predict": Command(
        "Print predictions for new inputs.", "packs.export.prediction:predict", INPUTS, of_checkpoint=True
    ),
}
