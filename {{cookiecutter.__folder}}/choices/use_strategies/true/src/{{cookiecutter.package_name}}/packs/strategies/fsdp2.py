"""fsdp2: each rank holds a shard of every weight, of its gradient and of the optimizer's state, by torch's ``fully_shard``.

Its checkpoints are folders of torch.distributed.checkpoint. rest.pt in each has everything else, with an empty tensor in
place of each tensor. Any number of processes, and any strategy of the same backend, can read them.
"""

from __future__ import annotations

import ctypes
import io
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from ...runtime.process import collectives
from ...runtime.state import checkpoints, remove, unwritable
from ...runtime.state.checkpoints import Stateful

# Weights of a part that is gathered by itself: fewer are not worth a collective, and more are divided where possible.
LEAST_NUMEL, MOST_NUMEL = 2**18, 2**24


def prepare() -> None:
    """Make ``distribute`` shard models over all ranks."""
    device = idist.device().type
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if device == "cpu" and mallopt:
        # Else glibc keeps what was gathered: return every freed block of 256 KiB or more to the system.
        m_mmap_threshold = -3
        mallopt(m_mmap_threshold, 2**18)
    collectives.wrap = partial(shard, init_device_mesh(device, (idist.get_world_size(),)))


def shard(mesh: DeviceMesh, model: nn.Module, **options: Any) -> nn.Module:
    """Shard a model in place, and return it. The shards stay in float32; autocast converts what is gathered."""
    for part in (*parts_of(model), model):
        collectives.note_trainable(part)
        # Registered first, to run before the part is sharded again: torch ignores what its forward pass has thawed.
        part.register_forward_hook(lambda part, *_: collectives.require_same_trainable(part))
        fully_shard(part, mesh=mesh)
    sharded: Any = model

    @contextmanager
    def no_sync() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    # What collectives.no_sync and average_gradients look for.
    vars(model).update(no_sync=no_sync, averages_gradients=True)
    return model


def parts_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are gathered one at a time: the large ones of lists, such as blocks, the innermost first.

    Those that share a weight with the rest of the model are gathered with it, which keeps them tied.
    """

    def uses(module: nn.Module) -> Counter[nn.Parameter]:
        return Counter(weight for _, weight in module.named_parameters(remove_duplicate=False))

    def numel(module: nn.Module) -> int:
        return sum(weight.numel() for weight in module.parameters())

    everywhere = uses(model)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    parts = dict.fromkeys(part for module in reversed(lists) for part in module if numel(part) >= LEAST_NUMEL)
    whole = [part for part in parts if all(everywhere[weight] == count for weight, count in uses(part).items())]
    inner = {module for part in whole if numel(part) <= MOST_NUMEL for module in part.modules() if module is not part}
    return [part for part in whole if part not in inner]


def name_of(path: pytree.KeyPath) -> str:
    """Return the name that torch gives to a tensor in nested containers."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)


class Files(checkpoints.Format):
    """Writes files, and reads files and folders."""

    def damage(self, path: Path) -> str:
        """Return what is wrong with a checkpoint, or an empty text."""
        if path.is_file():
            return super().damage(path)
        try:
            # Each tensor is stored as an archive with checksums.
            for stored in dcp.FileSystemReader(path).read_metadata().storage_data.values():
                with (path / stored.relative_path).open("rb") as file:
                    file.seek(stored.offset)
                    content = io.BytesIO(file.read(stored.length))
                with zipfile.ZipFile(content) as archive:
                    if archive.testzip():
                        return f"{stored.relative_path} is corrupt"
        except Exception as error:  # noqa: BLE001 - a damaged index can raise anything
            return str(error)
        return super().damage(path / "rest.pt")

    def load(self, path: Path, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Return the content of a checkpoint; what ``parts`` hold in shards is sharded in the same way."""
        live = dict(live_tensors(parts))

        def place(path: pytree.KeyPath, leaf: Any) -> Any:
            name = name_of(path)
            # An optimizer's state is sharded as the weight is.
            weight = live.get(name, live.get(name.rpartition(".")[0]))
            if not isinstance(leaf, Tensor):
                return leaf
            if isinstance(weight, DTensor) and weight.shape == leaf.shape:
                if leaf.is_meta:
                    return torch.empty_like(weight, dtype=leaf.dtype)
                return distribute_tensor(leaf, weight.device_mesh, weight.placements)
            return torch.empty_like(leaf, device="cpu") if leaf.is_meta else leaf

        saved = super().load(path / "rest.pt" if path.is_dir() else path, parts)
        # The weights of the average, if there are any, are what an evaluation reads.
        saved = {name: part for name, part in saved.items() if name in (*parts, "average")}
        content: dict[str, Any] = pytree.tree_map_with_path(place, saved)
        if path.is_dir():
            leaves = pytree.tree_flatten_with_path(content)[0]
            # torch warns if this process is the only one.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            try:
                dcp.load({name_of(key): leaf for key, leaf in leaves if isinstance(leaf, Tensor)}, checkpoint_id=path)
            except CheckpointException as error:
                # It is not an Exception, and its text contains the tracebacks of all ranks.
                raise ValueError(str(next(iter(error.failures.values()))[0])) from None
        return content


class Folders(Files):
    """Writes folders, and reads files and folders."""

    suffix = ""

    def collect(self, parts: Mapping[str, Stateful], path: Path) -> Callable[[], None]:
        """Write the tensors of all ranks; return the function that completes the folder, for rank 0 to call."""
        content = {name: part.state_dict() for name, part in parts.items()}
        draft = path.with_name(f".{path.name}.part")
        try:
            dcp.save(content, storage_writer=dcp.FileSystemWriter(draft))
        except CheckpointException as error:
            cause = next(iter(error.failures.values()))[0]
            collectives.run_on_rank_zero(lambda: remove(draft))
            raise unwritable(path, cause if isinstance(cause, OSError) else OSError(0, str(cause))) from None
        empty = lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        rest: dict[str, Any] = pytree.tree_map_only(Tensor, empty, content)

        def finish() -> None:
            checkpoints.write_file(rest, draft / "rest.pt")
            remove(path)
            draft.replace(path)

        return finish


def live_tensors(parts: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of models and optimizers under the names that they, or their state, have in a checkpoint."""
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            yield from ((f"{name}.{key}", tensor) for key, tensor in part.state_dict().items())
        for attribute, value in vars(part).items():
            if isinstance(value, torch.optim.Optimizer):
                weights = [weight for group in value.param_groups for weight in group["params"]]
                yield from ((f"{name}.{attribute}.state.{number}", weight) for number, weight in enumerate(weights))
