"""Checkpoints: written by rank 0 while the others wait, and read by every rank."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import ignite.distributed as idist
import torch
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint
from torch.utils import _pytree as pytree

from ..process import hardware
from ..report import UsageError, logger
from . import is_checkpoint, remove, replacing, saved_checkpoints


class Stateful(Protocol):
    """Anything with a state that a checkpoint can hold."""

    def state_dict(self) -> Any:
        """Return tensors, numbers and texts, in dicts and lists."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore what ``state_dict`` returned."""


class Format:
    """How checkpoints are stored: files of torch.save, from rank 0. A pack may replace ``current``."""

    suffix = ".pt"

    def damage(self, path: Path) -> str:
        """Return why a checkpoint is damaged, or an empty text; reads the whole file."""
        if path.is_dir():
            return "" if is_checkpoint(path) else "it has no .metadata"
        try:
            # torch.save writes a checksum of each part, which torch.load does not verify.
            with zipfile.ZipFile(path) as archive:
                part = archive.testzip()
        except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
            return str(error)
        return f"its part {part} is corrupt" if part else ""

    def collect(self, parts: Mapping[str, Stateful], path: Path) -> Callable[[], None]:
        """Return the function that writes a checkpoint, for rank 0 to call. Every rank must call this one."""
        content = {name: part.state_dict() for name, part in parts.items()}
        # A rank that writes nothing may still have to compute what the others need.
        hardware.synchronize()
        return lambda: write_file(content, path)

    def load(self, path: Path, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Return the content of a checkpoint; ``parts`` are those it will be loaded into."""
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return content


current = Format()


def write_file(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint.

    Raises:
        UsageError: if it cannot be written, or torch.load would reject it.
    """
    if idist.device().type == "xla":
        content = pytree.tree_map_only(Tensor, Tensor.cpu, content)
    with replacing(path) as file:
        torch.save(content, file)
        file.flush()
        if unsafe := ", ".join(sorted(get_unsafe_globals_in_checkpoint(file.name))):
            fix = "Return only tensors, numbers and texts from state_dict."
            raise UsageError(f"{path} would contain {unsafe}, which torch.load rejects. {fix}", 1)


def newest(folder: Path) -> Path | None:
    """Return the newest intact checkpoint to resume from; damaged ones are renamed, with a warning."""
    intact = None
    for file in saved_checkpoints(folder, "*"):
        if reason := current.damage(file):
            logger.warning("%s is damaged (%s), renamed to %s", file, reason, put_aside(file, "damaged"))
        elif file.name.startswith("last"):
            intact = file
    return intact


def put_aside(checkpoint: Path, reason: str) -> str:
    """Rename a checkpoint so that it is no longer used; return its new name."""
    aside = checkpoint.with_name(f"{checkpoint.name}.{reason}")
    remove(aside)
    checkpoint.rename(aside)
    return aside.name


def load(path: Path, parts: Mapping[str, Stateful]) -> None:
    """Restore ``parts`` from a checkpoint. Every rank reads it.

    Raises:
        UsageError: if it is missing, damaged, or of another model, optimizer or task.
    """
    if not is_checkpoint(path) or (reason := current.damage(path)):
        reason = f"is damaged ({reason})" if path.exists() else "does not exist"
        raise UsageError(f"checkpoint {path} {reason}. Choose one in the checkpoints folder of a run.")
    name = ""
    try:
        saved = current.load(path, parts)
        if [*parts] == ["model"] and "average" in saved:
            # The weights that the run evaluated.
            saved["model"] = saved["average"]
        for name, part in parts.items():
            if name not in saved:
                raise LookupError(f"it has no {name}; a best_* has weights only")
            part.load_state_dict(saved[name])
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        other = "another optimizer or schedule" if name == "step" else f"another {name or 'program'}"
        raise UsageError(
            f"{path} belongs to {other} ({reason}). Choose another checkpoint or train.run_dir."
        ) from error


def initialize(model: nn.Module, path: Path) -> None:
    """Load the weights of a file or a run directory into a model, and log what does not fit. Every rank reads it.

    Raises:
        UsageError: if it cannot be read, or has no weight of this model.
    """
    weights, own = read_weights(path, model), model.state_dict()
    shape_of: Callable[[Any], Any] = lambda value: getattr(value, "shape", None)
    fitting = {name: value for name, value in weights.items() if name in own and shape_of(value) == shape_of(own[name])}
    if not fitting:
        found = f"train.init_from {path} has no weight of this model: it has {', '.join([*weights][:9])}"
        raise UsageError(f"{found}. Choose another file.")
    model.load_state_dict(fitting, strict=False)
    logger.info("%s of %s weights and buffers initialized from %s", len(fitting), len(own), path)
    others = {"is not in the file": own.keys() - weights.keys(), "is not in the model": weights.keys() - own.keys()}
    others["has another shape"] = (own.keys() & weights.keys()) - fitting.keys()
    for what, names in others.items():
        if names:
            logger.warning("not initialized from %s, because it %s: %s", path, what, ", ".join(sorted(names)))


def read_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Return the weights of a checkpoint, of the best one of a run directory, or of a file from elsewhere."""
    if path.is_dir() and not is_checkpoint(path):
        kinds = [saved_checkpoints(path / "checkpoints", kind) for kind in ("best", "last")]
        path = next((files[-1] for files in kinds if files), path)
    try:
        if path.suffix == ".safetensors":
            # An optional package.
            content = import_module("safetensors.torch").load_file(path)
        else:
            content = current.load(path, {"model": model})
        content = next((content[key] for key in ("average", "model", "state_dict") if key in content), content)
        # Of a model that was saved while wrapped.
        for prefix in ("module.", "_orig_mod."):
            if all(name.startswith(prefix) for name in content):
                content = {name.removeprefix(prefix): value for name, value in content.items()}
        return dict(content)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        fix = "Choose a checkpoint, a run directory, or a .pt or .safetensors file of weights."
        raise UsageError(f"train.init_from {path} cannot be read ({reason}). {fix}") from error
