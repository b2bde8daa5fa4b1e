"""What makes a model faster, or lets it need less memory; what it learns stays the same but for rounding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .config import TrainConfig
from .distributed import hardware
from .engines import change_tensors
from .errors import UsageError

# What torch.compile has its kernels built with, or what starts them.
COMPILERS = ("g++", "clang++", "gcc", "clang")
# After so many for other shapes, modes or models, torch.compile takes what comes next as it is; its default is 8.
RECOMPILATIONS = 256


def accelerate(model: nn.Module, settings: TrainConfig, learns: bool = True, calls_parts: bool = False) -> nn.Module:
    """Return the model with what ``settings`` ask for; unless it ``learns``, only with what its answers depend on.

    ``calls_parts`` is whether the task calls the parts of the model instead of the model itself, so that these are compiled.

    Raises:
        UsageError: if the model does not offer what that requires.
    """
    hardware.set_matmul_precision(settings.matmul_precision)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.register_forward_pre_hook(_channels_last_too)
    if learns and settings.activation_checkpointing:
        for block in blocks_of(model):
            again: Callable[..., Any] = checkpoint
            contexts: dict[str, Any] = {}
            if any(True for _ in buffers_of(block)):
                contexts["context_fn"] = partial(_once_and_again, block)
                if settings.compile:
                    # Within what is compiled, it would leave out the contexts, so it stands between two parts of that.
                    _compile(block)
                    again = torch.compiler.disable(checkpoint)
            block.forward = partial(again, block.forward, use_reentrant=False, **contexts)
    if learns and settings.compile:
        if not any(map(shutil.which, (os.environ.get("CXX") or "", os.environ.get("CC") or "", *COMPILERS))):
            names = ", ".join(COMPILERS)
            raise UsageError(f"train.compile requires one of the compilers {names}: install it, or leave it false", 1)
        for part in _parts_of(model) if calls_parts else (model,):
            _compile(part)
    return model


def _compile(model: nn.Module) -> None:
    """Compile the forward pass of a model, whatever its class, and that of each copy.

    ``nn.Module.compile`` silently does nothing where the forward pass is torch's own, as that of nn.Sequential is.
    """
    # It counts those of all models together, as they share what it compiles: equal ones are compiled once.
    torch._dynamo.config.cache_size_limit = max(RECOMPILATIONS, torch._dynamo.config.cache_size_limit)
    # A copy of the model has a copy of what it is called with here.
    model.forward = partial(torch.compile(_call), model.forward)


def _call(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return forward(*arguments, **options)


def _parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts that a task can call: those in a list or a dictionary, which cannot be called itself, one by one."""
    for part in model.children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _parts_of(part)
        else:
            yield part


def _once_and_again(block: nn.Module) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return in what a block computes its activations first, and in what it does so again, for the backward pass.

    Again, it has copies of the buffers that it had before: those of BatchNorm would count a batch twice, and others may take
    part in what it computes.
    """
    before: list[tuple[nn.Module, str, Tensor]] = []

    @contextmanager
    def once() -> Iterator[None]:
        before.extend((part, name, buffer.clone()) for part, name, buffer in buffers_of(block))
        yield

    @contextmanager
    def again() -> Iterator[None]:
        now = list(buffers_of(block))
        for part, name, buffer in before:
            part._buffers[name] = buffer.clone()
        try:
            yield
        finally:
            for part, name, buffer in now:
                part._buffers[name] = buffer

    return once(), again()


def buffers_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield each buffer, with the module that has it and its name there."""
    for part in model.modules():
        yield from ((part, name, buffer) for name, buffer in part._buffers.items() if buffer is not None)


@contextmanager
def keeping_buffers(block: nn.Module) -> Iterator[None]:
    """Keep the buffers of a module as they are, such as BatchNorm's statistics, which would count a batch twice."""
    kept = [(part, name, buffer, buffer.clone()) for part, name, buffer in buffers_of(block)]
    try:
        yield
    finally:
        for part, name, buffer, before in kept:
            # Not as a change that the backward pass refuses.
            buffer.data.copy_(before)
            # The module may have another tensor there by now.
            part._buffers[name] = buffer


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """Return the parts of a model whose activations can be computed again.

    Raises:
        UsageError: if it does not say which these are.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        raise UsageError(
            "train.activation_checkpointing needs a model that keeps its repeated parts as self.blocks, an nn.ModuleList or "
            "nn.Sequential: name them so in task/model.py",
            1,
        )
    return blocks


def _channels_last_too(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Return the inputs, those of four dimensions in the layout of the weights."""

    def changed(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return change_tensors(inputs, changed)
