"""A trained model as a program of torch.export, and as plain weights."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...config import Config
from ...runtime import Task, UsageError
from ...runtime.data import EvaluationBatches
from ...runtime.data.loader import create_loader
from ...runtime.state import plain, run_directory_of
from .prediction import load_model

# Largest difference between outputs of the program and of the model, relative to the largest output.
TOLERANCE = 1e-4
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def export(config: Config, options: dict[str, Any]) -> int:
    """Write weights.pt, model.json and the program model.pt2; print one line of JSON.

    Raises:
        UsageError: if torch cannot export the model, or the program has other outputs. weights.pt is written anyway.
    """
    checkpoint = options["checkpoint"]
    folder = Path(options["folder"] or run_directory_of(checkpoint) / "export")
    task, model = load_model(config, checkpoint)
    arguments = example_arguments(model, task)
    shapes = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors(arguments)]
    about = {"checkpoint": checkpoint, "inputs": shapes, "task": plain(config)["task"], "data": facts(task.data)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), folder / "weights.pt")
        (folder / "model.json").write_text(json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}). Choose another --folder.", 1) from None
    try:
        write_program(model, arguments, folder / "model.pt2")
    except Exception as error:
        reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
        raise UsageError(f"torch.export failed ({reason}). Use {folder}/weights.pt, which was written.", 1) from error
    print(json.dumps({"checkpoint": checkpoint, "folder": str(folder), "inputs": shapes}))
    return 0


def example_arguments(model: nn.Module, task: Task) -> Arguments:
    """Return what ``forward`` of the task calls the model with, for the first batch of validation samples.

    Raises:
        UsageError: if it does not call the model.
    """
    calls: list[Arguments] = []
    hook = model.register_forward_pre_hook(lambda module, *arguments: calls.append(arguments), with_kwargs=True)
    samples = next(iter(task.val.values()))
    batches = EvaluationBatches(len(samples), task.evaluation_batch_size, rank=0, world_size=1)
    with torch.no_grad():
        task.forward(model, next(iter(create_loader(samples, batches, collate=task.collate))))
    hook.remove()
    if not calls:
        raise UsageError("forward in task/objective.py does not call model(...), so there is nothing to export.", 1)
    # Copies: of a view, the program would also require the size of its base.
    copies: Arguments = pytree.tree_map_only(Tensor, Tensor.clone, calls[0])
    return copies


def write_program(model: nn.Module, arguments: Arguments, file: Path) -> None:
    """Write a program for batches of any size, and compare its outputs with the model's.

    Raises:
        Exception: if torch cannot export the model, or an output differs.
    """
    if texts := [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, str)]:
        raise TypeError(f"the model takes text, such as {texts[0]!r}, which would become part of the program")
    inputs, options = arguments
    with torch.no_grad():
        by_name = inspect.signature(model.forward).bind(*inputs, **options).arguments
        sizes = pytree.tree_map(free_sizes, by_name)
        program = torch.export.export(model, inputs, options, dynamic_shapes=sizes, strict=False)
        torch.export.save(program, file)
        outputs = torch.export.load(file).module()(*inputs, **options)
        for output, expected in zip(tensors(outputs), tensors(model(*inputs, **options)), strict=True):
            finite = expected[expected.isfinite()].abs()
            atol = TOLERANCE * float(finite.max()) if finite.numel() else 0.0
            torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=atol, equal_nan=True)


def free_sizes(leaf: Any) -> dict[int, Any] | None:
    """Return which dimensions of an input may have other sizes: all that the model does not fix, except those of size 1."""
    if not isinstance(leaf, Tensor):
        return None
    return {dimension: torch.export.Dim.AUTO for dimension, size in enumerate(leaf.shape) if size > 1}


def tensors(nested: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [leaf for leaf in pytree.tree_leaves(nested) if isinstance(leaf, Tensor)]


def facts(data: Any) -> dict[str, Any]:
    """Return the fields of the task's data that JSON can hold, such as the names of classes."""
    fields = data._asdict() if hasattr(data, "_asdict") else vars(data)
    return {name: value for name, value in fields.items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    """Return whether JSON can hold a value."""
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)
