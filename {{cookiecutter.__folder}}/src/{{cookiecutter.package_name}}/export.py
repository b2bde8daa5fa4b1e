"""A trained model for use elsewhere: as a program that requires torch alone, and as weights with what belongs to them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from . import storage
from .batches import EvaluationBatches, closing, create_loader
from .binding import bind, load_data
from .checkpoints import load_checkpoint
from .config import Config, to_dict
from .errors import UsageError
from .evaluation import evaluating
from .randomness import seed_samples
from .task.model import create_model

# Largest difference of an output, relative to the largest one, between the program and the model.
TOLERANCE = 1e-4
# The seed of what a model draws when the two are compared, not that of load_data.
COMPARED_WITH = 1


def export(config: Config, checkpoint: str, path: Path) -> int:
    """Write the model of ``checkpoint`` to the folder ``path``, read it back, compare, and print one line of JSON.

    weights.pt is the plain state dict; model.json holds the task's settings, the facts of its data and the shapes of the
    model's inputs; model.pt2 is the program: ``torch.export.load("model.pt2").module()(*inputs)``.

    Raises:
        UsageError: if torch cannot make a program of the model, or that answers otherwise; weights.pt is written.
    """
    model, data = load_model(config, checkpoint)
    inputs, options = first_inputs(model, data, config)
    storage.open_folder(path)
    torch.save(model.state_dict(), path / "weights.pt")
    shapes = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors((inputs, options))]
    about = {"checkpoint": checkpoint, "inputs": shapes, "task": to_dict(config)["task"], "data": facts(data)}
    text = json.dumps(about, indent=2) + "\n"
    (path / "model.json").write_text(text)
    program = path / "model.pt2"
    try:
        if texts := [part for part in pytree.tree_leaves((inputs, options)) if isinstance(part, str)]:
            # It would make the texts of this batch a part of the program.
            raise TypeError(f"its inputs hold text, such as {texts[0]!r}: turn it into numbers in task/objective.py")
        from torch.export import Dim, load, save
        from torch.export import export as trace

        arguments = inspect.signature(model.forward).bind(*inputs, **options).arguments
        sizes = pytree.tree_map(lambda part: free_sizes(part, Dim.AUTO), arguments)
        with torch.no_grad():
            traced = trace(model, inputs, options, dynamic_shapes=sizes, strict=False)
        save(traced, program, extra_files={"model.json": text})
        # Both draw the same, if they draw; numbers of Python or numpy are a part of the program by now, and not these.
        seed_samples(COMPARED_WITH)
        answer = load(program).module()(*inputs, **options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"torch.export makes no program of this model ({reason}): {path}/weights.pt is written, use that", 1
        ) from error
    seed_samples(COMPARED_WITH)
    with torch.no_grad():
        expected = model(*inputs, **options)
    difference = relative_difference(tensors(answer), tensors(expected))
    print(json.dumps({"checkpoint": checkpoint, "folder": str(path), "difference": difference}))
    if not difference <= TOLERANCE:
        raise UsageError(f"{program} answers otherwise than the model, by {difference:g}: use {path}/weights.pt", 1)
    return 0


def prediction(config: Config, checkpoint: str, inputs: list[str]) -> int:
    """Print what the model of ``checkpoint`` makes of each of the inputs, as lines of JSON.

    Raises:
        UsageError: if the task has no ``task/predict.py``.
    """
    name = f"{__package__}.task.predict"
    if importlib.util.find_spec(name) is None:
        raise UsageError("this task has no task/predict.py: write predict(model, data, inputs) there")
    predict = importlib.import_module(name).predict
    model, data = load_model(config, checkpoint)
    with torch.no_grad():
        for line in predict(model, data, inputs):
            print(storage.to_json(line), flush=True)
    return 0


def load_model(config: Config, checkpoint: str) -> tuple[nn.Module, Any]:
    """Return the model of a checkpoint, in evaluation mode on the CPU, and the data that it was made for."""
    data = load_data(config)
    model = create_model(config.task, data)
    load_checkpoint(Path(checkpoint), {"model": model})
    return model.eval(), data


def first_inputs(model: nn.Module, data: Any, config: Config) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what ``forward`` of the task gives the model for the first batch of validation samples.

    Raises:
        UsageError: if it does not run the model as a whole.
    """
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = model.register_forward_pre_hook(lambda module, *given: seen.append(given), with_kwargs=True)
    loader = create_loader(data.val, EvaluationBatches(len(data.val), 0, 1), num_workers=0)
    with closing(loader), evaluating(model), torch.no_grad():
        bind(config.task, data).forward(model, next(iter(loader)))
    hook.remove()
    if not seen:
        raise UsageError("forward in task/objective.py never runs model(...), so there is nothing to export", 1)
    return seen[0]


def facts(data: Any) -> dict[str, Any]:
    """Return the plain values among the fields of the task's data, such as names."""
    fields = data._asdict() if hasattr(data, "_asdict") else vars(data)
    return {name: value for name, value in fields.items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    """Tell whether JSON can hold ``value``."""
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


def tensors(nested: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [part for part in pytree.tree_leaves(nested) if isinstance(part, Tensor)]


def free_sizes(part: Any, free: Any) -> dict[int, Any] | None:
    """Return which sizes of an input may be others than here: all that the model does not fix, but not those of 1."""
    return {place: free for place, size in enumerate(part.shape) if size > 1} if isinstance(part, Tensor) else None


def relative_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference, as a part of the largest finite number of its tensor; NaN where there is one."""
    largest = [torch.tensor(0.0, dtype=torch.double)]
    for one, other in zip(ours, theirs, strict=True):
        if other.numel():
            one, other = one.detach().double(), other.detach().double()
            # The difference of two infinite numbers, as of what a mask has left out, would be NaN.
            difference = torch.where(one == other, 0.0, (one - other).abs())
            scale = torch.where(other.isfinite(), other.abs(), 0.0).max()
            largest.append(difference.max() / scale.clamp(min=1e-12))
    # Python's max passes by NaN.
    return float(torch.stack(largest).max())
