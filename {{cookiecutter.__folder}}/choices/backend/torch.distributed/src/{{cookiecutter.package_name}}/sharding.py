"""Weights that no process holds as a whole: ``distributed.strategy fsdp2``, and its checkpoints, which are folders.

Such a folder has the weights of each rank in a file of torch.distributed.checkpoint, everything else in rest.pt, and the
checksums of all files in checksums.json. Any number of processes, and any strategy, can read it.
"""

from __future__ import annotations

import atexit
import inspect
import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_shards
from torch.distributed.checkpoint.state_dict_saver import save as write_shards
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from . import collectives, host_memory, storage
from .copies import save_readable
from .errors import UsageError
from .optimization import has_eval

# A module of a list is gathered by itself if it has so many weights: fewer are not worth an exchange of their own.
LEAST_NUMEL = 2**18
# How rest.pt names a tensor that is in the other files.
ELSEWHERE = "in shards: "
# What the index of such a folder is made of, beside what torch has for that, and the types of tensors.
IN_AN_INDEX = (
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
)


def shard(model: nn.Module) -> nn.Module:
    """Give every rank a part of the weights of rank 0, on its device, where no more than one module is as a whole."""
    if idist.device().type == "cpu":
        # Else the C library keeps what was gathered: each step would need more of the system's memory.
        host_memory.return_freed_memory()
    device = idist.device()
    mesh = mesh_of(device.type, idist.get_world_size())
    share_out_weights(model, mesh, device)
    atexit.register(_leave_processes, mesh)
    return model


def _leave_processes(mesh: DeviceMesh) -> None:
    """Let go of the process group: torch's caches keep the mesh, and a thread of the group aborts an exit of Python."""
    # It is private, and only newer torch has it.
    getattr(mesh, "_pg_registry", {}).clear()


def mesh_of(device: str, world_size: int) -> DeviceMesh:
    """Return all ranks, as a row."""
    return init_device_mesh(device, (world_size,))


def share_out_weights(model: nn.Module, mesh: DeviceMesh, device: torch.device | None = None) -> None:
    """Let each rank keep a part of every weight, of its gradient and of the optimizer's state.

    What a module needs as a whole is gathered when it runs: by itself for each large module of a list, such as the blocks
    of a transformer, and for all else together.

    Args:
        device: where each of them goes before, with the weights of rank 0.

    Raises:
        UsageError: if a weight is a single number without a dimension, or is gathered with two modules.
    """
    for name, weight in model.named_parameters():
        if weight.ndim == 0:
            raise UsageError(f"fsdp2 cannot share out {name}, a number without a dimension: give it the shape (1,)", 1)
    # A module may stand in several lists.
    parts = dict.fromkeys((*large_parts(model), model))
    refuse_weights_of_several_parts(model, parts)
    for part in parts:
        if device is not None:
            part.to(device)
            for tensor in (*part.parameters(), *part.buffers()):
                # Sparse ones stay as they are.
                if not isinstance(tensor, DTensor) and tensor.layout == torch.strided:
                    dist.broadcast(tensor.detach(), src=0)
        fully_shard(part, mesh=mesh)


def refuse_weights_of_several_parts(model: nn.Module, parts: Iterable[nn.Module]) -> None:
    """Refuse to gather a weight with two parts, each of which would make it one of its own.

    Raises:
        UsageError: if there is one.
    """
    part_of: dict[nn.Module, nn.Module] = {}
    # Those within others come first.
    for part in parts:
        part_of.update({module: part for module in part.modules() if module not in part_of})
    found: dict[nn.Parameter, tuple[str, nn.Module]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        part = part_of[model.get_submodule(name.rpartition(".")[0])]
        other, its_part = found.setdefault(weight, (name, part))
        if its_part is not part:
            fix = "keep both modules in the same one of a list, or both outside of lists"
            raise UsageError(f"fsdp2 would untie {other} and {name}, which are one weight: {fix}", 1)


def share_out_state(optimizer: Optimizer) -> Optimizer:
    """Let each rank keep the optimizer's state of some weights, which it updates and sends to the others.

    Raises:
        UsageError: if the optimizer switches between weights by itself, which the others would not get.
    """
    kind = type(optimizer)
    if has_eval(optimizer):
        raise UsageError(f"zero1 does not know the other weights of {kind.__name__}: set distributed.strategy ddp", 1)
    # Some keep more there than they can be made of.
    known = inspect.signature(kind).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in known}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    # In its buckets, weights get the usual layout. Fused kernels would add to them gradients in another one, number by number.
    as_views = all(weight.is_contiguous() for weight in weights)
    shared = ZeroRedundancyOptimizer(optimizer.param_groups, kind, parameters_as_bucket_view=as_views, **settings)
    # What else the optimizer was given, and has learned since, such as hooks of its step; but no weights, of which it has a part.
    others = {name: value for name, value in vars(optimizer).items() if name != "state" and not holds_tensors(value)}
    vars(shared.optim).update(others)
    return shared


def holds_tensors(nested: Any) -> bool:
    """Tell whether there is a tensor in nested containers."""
    return any(isinstance(part, Tensor) for part in pytree.tree_leaves(nested))


def large_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the large modules of lists, those within others first."""
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.ModuleList | nn.Sequential):
            yield from (part for part in module if sum(map(torch.numel, part.parameters())) >= LEAST_NUMEL)


def sizes_of_parts(model: nn.Module) -> list[int]:
    """Return how many bytes of weights are gathered at a time, for each of the parts, before they are shared out."""
    left = {weight: weight.nbytes for weight in model.parameters()}
    parts = dict.fromkeys((*large_parts(model), model))
    return [sum(left.pop(weight, 0) for weight in part.parameters()) for part in parts]


def save(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint as the folder ``path``, which is there as a whole or not at all; every rank must call it.

    Raises:
        UsageError: on every rank, if one of them cannot write.
    """
    draft = storage.draft_of(path)
    shards: dict[str, Tensor] = {}
    rest = without_shards(checkpoint, "", shards)
    collectives.rank_zero_only(lambda: storage.make_folder(draft))
    try:
        write_shards(shards, storage_writer=FileSystemWriter(draft))
    except CheckpointException as error:
        (cause, _), *_ = error.failures.values()
        # What has no room is not to take any: every rank has failed, and none writes any more.
        if idist.get_rank() == 0:
            storage.remove(draft)
        raise storage.unwritable(path, cause if isinstance(cause, OSError) else OSError(0, str(cause))) from None
    mine = {file.name: storage.checksum(file) for file in draft.glob(f"__{idist.get_rank()}_*")}
    everyones: list[dict[str, int]] = [mine] * idist.get_world_size()
    dist.all_gather_object(everyones, mine)

    def finish() -> None:
        with storage.replacing(draft / "rest.pt") as file:
            save_readable(rest, path, file)
        own = {name: storage.checksum(draft / name) for name in ("rest.pt", ".metadata")}
        checksums = {name: value for each in (own, *everyones) for name, value in each.items()}
        storage.write(draft / storage.CHECKSUMS, json.dumps(checksums))
        storage.replace_folder(draft, path)

    collectives.rank_zero_only(finish)


def load(path: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint, with its tensors shared out as those of ``objects`` are, into which it is to be loaded.

    Args:
        path: a file, or a folder, of which only what ``objects`` name is read.

    Raises:
        ValueError: if the folder holds something else.
    """
    live = dict(live_tensors(objects))
    if path.is_file():
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return {name: shared_out(part, name, live) for name, part in saved.items()}
    rest = torch.load(path / "rest.pt", map_location="cpu", weights_only=True)
    rest = {name: part for name, part in rest.items() if name in objects}
    wanted = {name: torch.empty_like(like(name, live)) for name in names_of_shards(rest)}
    try:
        with warnings.catch_warnings():
            # That there are no other processes is no surprise.
            warnings.simplefilter("ignore")
            read_shards(wanted, storage_reader=Reader(path), no_dist=not dist.is_initialized())
    except CheckpointException as error:
        # It is no Exception, and its text has the tracebacks of all ranks.
        (cause, _), *_ = error.failures.values()
        raise ValueError(str(cause)) from None
    return {name: with_shards(part, wanted) for name, part in rest.items()}


def live_tensors(objects: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of models, and those that optimizers update, by the names which they have in a checkpoint."""
    for name, part in objects.items():
        if isinstance(part, nn.Module):
            yield from ((f"{name}/{key}", tensor) for key, tensor in part.state_dict().items())
        elif isinstance(part, Optimizer):
            weights = (weight for group in part.param_groups for weight in group["params"])
            yield from ((f"{name}/state/{number}", weight) for number, weight in enumerate(weights))


def like(name: str, live: Mapping[str, Tensor]) -> Tensor:
    """Return the live tensor of this name, or the weight about which it is what an optimizer remembers."""
    return live[name] if name in live else live[name.rpartition("/")[0]]


def without_shards(nested: Any, name: str, shards: dict[str, Tensor]) -> Any:
    """Return nested containers without the tensors that are shared out, which are added to ``shards`` by their names."""
    if isinstance(nested, DTensor):
        shards[name] = nested
        return ELSEWHERE + name
    if isinstance(nested, Mapping):
        return {key: without_shards(part, f"{name}/{key}".lstrip("/"), shards) for key, part in nested.items()}
    return nested


def names_of_shards(nested: Any) -> Iterator[str]:
    """Yield the names of the tensors that ``without_shards`` has taken out."""
    if isinstance(nested, Mapping):
        for part in nested.values():
            yield from names_of_shards(part)
    elif isinstance(nested, str) and nested.startswith(ELSEWHERE):
        yield nested.removeprefix(ELSEWHERE)


def with_shards(nested: Any, shards: Mapping[str, Tensor]) -> Any:
    """Return nested containers with the tensors that ``without_shards`` has taken out."""
    if isinstance(nested, Mapping):
        return {key: with_shards(part, shards) for key, part in nested.items()}
    if isinstance(nested, str) and nested.startswith(ELSEWHERE):
        return shards[nested.removeprefix(ELSEWHERE)]
    return nested


def shared_out(nested: Any, name: str, live: Mapping[str, Tensor]) -> Any:
    """Return nested containers, of whose tensors each rank keeps its part where it keeps a part of the live one."""
    if isinstance(nested, Mapping):
        return {key: shared_out(part, f"{name}/{key}", live) for key, part in nested.items()}
    if isinstance(nested, Tensor) and nested.dim():
        known = live.get(name, live.get(name.rpartition("/")[0]))
        if isinstance(known, DTensor):
            return distribute_tensor(nested, known.device_mesh, known.placements, src_data_rank=None)
    return nested


class Reader(FileSystemReader):
    """Reads the index of a folder without running code that somebody may have put there, as pickle would."""

    def read_metadata(self, *args: Any, **options: Any) -> metadata.Metadata:
        """Return the index.

        Raises:
            UnpicklingError: if it holds something else.
        """
        with (Path(self.path) / ".metadata").open("rb") as file:
            index: metadata.Metadata = Index(file).load()
        index.storage_meta = index.storage_meta or metadata.StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


class Index(pickle.Unpickler):
    """Knows what is in the index of a checkpoint, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            # So some versions of Python, such as 3.11.2, write a member of an enumeration.
            return member
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        # Not what that module has imported, of which pickle would also take a part: os.system.
        part = vars(metadata).get(name) if module == metadata.__name__ else None
        is_part = isinstance(part, type) and part.__module__ == module
        if is_type or is_part or (module, name) in IN_AN_INDEX:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into it")


def member(enumeration: type[Enum], name: str) -> Enum:
    """Return a member of an enumeration, and no other attribute."""
    return enumeration[name]
