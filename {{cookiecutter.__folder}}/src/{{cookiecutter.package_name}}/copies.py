"""What is saved of a training, on the CPU, as it is at that moment: the next steps change it while it is written."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from .errors import UsageError


class Copies:
    """Memory of the host for copies of tensors, which the next checkpoint uses again.

    Filling new memory of the system takes several times as long: it has to provide each page first.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._used = 0

    def begin(self) -> Copies:
        """Let the copies from before be overwritten."""
        self._used = 0
        return self

    def take(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor, on the CPU."""
        # These know best how they are copied: types of somebody's own, sparse tensors, those of some devices.
        if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.device.type == "xla":
            return tensor.to("cpu", copy=True)
        place, self._used = self._used, self._used + 1
        kept = self._kept[place] if place < len(self._kept) else None
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
            self._kept[place : place + 1] = [kept]
        return kept.copy_(tensor)


def on_cpu(nested: Any, done: dict[Any, Tensor], copies: Copies | None = None) -> Any:
    """Return nested containers with their tensors on the CPU; as ``copies``, they stay as they are now.

    ``done`` are those that were moved already: weights that two modules share are written once.
    """
    if isinstance(nested, Tensor):
        key: Any = (nested.shape, nested.dtype)
        # Not every device tells addresses, and sparse tensors have several.
        if nested.layout != torch.strided or nested.device.type == "xla":
            key += (id(nested),)
        else:
            key += (nested.data_ptr(), nested.stride())
        if key not in done:
            done[key] = copies.take(nested.detach()) if copies else nested.detach().to("cpu")
        return done[key]
    if isinstance(nested, Mapping):
        # With the attributes that torch gives a state dict.
        result: Any = copy.copy(nested)
        for name, part in nested.items():
            result[name] = on_cpu(part, done, copies)
        return result
    if isinstance(nested, list | tuple):
        return type(nested)(on_cpu(part, done, copies) for part in nested)
    return nested


def save_readable(content: Mapping[str, Any], path: Path, file: IO[bytes]) -> None:
    """Write a checkpoint to ``file``, which is to become ``path``, unless torch would not read it back.

    Raises:
        UsageError: if it holds more than tensors and plain values.
    """
    torch.save(content, file)
    file.flush()
    if others := get_unsafe_globals_in_checkpoint(file.name):
        raise UsageError(
            f"{path} would hold {', '.join(sorted(others))}, which torch does not read back: let state_dict, get_extra_state and "
            "the groups of the optimizer hold nothing but tensors, numbers and text",
            1,
        )
