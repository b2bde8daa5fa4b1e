"""How the processes meet and exchange: by a process group of torch.distributed."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.optim import Optimizer

from .. import collectives
from ..checks import Check
from ..config import Averaging, DistributedConfig, Ranks
from ..errors import UsageError
from . import starter, transport

Value = TypeVar("Value")

# One kernel updates all weights, instead of several for each of them.
FUSED_OPTIMIZER = True
# Whether optimizer_step averages the gradients; else they are averaged before, by what wrap_model or wrap_optimizer add.
STEP_AVERAGES = False
# Before these steps, gradients that change fast travel whole.
POWERSGD_STARTS_AT = 10
# Up to how many bytes of gradients the processes of a machine exchange faster up a tree than in gloo's ring.
FEW_BYTES = 2**18
# The exchange up a tree that is under way, if one is: torch's flight recorder does not know of it.
UNDER_WAY: list[str] = []
# How long a process that waits in vain for others asks them whether they wait too.
ROLL_CALL_S = 3.0
STORE_IS_SILENT = "the process that keeps the store does not answer: it is that of rank 0, or the launcher"


def checks(config: DistributedConfig) -> Iterator[Check]:
    """Yield whether this torch can exchange, and by which paths."""
    available = dist.is_backend_available(config.backend)
    found = f"torch {torch.__version__} has {'' if available else 'no '}{config.backend}"
    yield Check("backend", available, found, transport.FIX)
    if config.backend == transport.NAME:
        yield from transport.checks(config.nproc_per_node or 1)


def join(config: DistributedConfig, ranks: Ranks | None) -> None:
    """Join the process group in which this process has ``ranks``; without ranks it trains alone.

    Raises:
        UsageError: if torch has no such backend, or the processes do not find each other.
    """
    # ignite takes Slurm's ranks wherever this is set, even if another launcher has set its own.
    os.environ.pop("SLURM_JOB_ID", None)
    if not ranks:
        return
    if not dist.is_backend_available(config.backend):
        raise UsageError(f"torch {torch.__version__} has no {config.backend}: {transport.FIX}", 1)
    transport.prepare()
    # Asked before the ranks are written below, which would look like those of a starter that serves the rendezvous itself.
    served = not transport.RENDEZVOUS or (starter.SERVES_RENDEZVOUS and starter.ranks())
    if ranks.world_size == ranks.local_world_size:
        # On one machine they can meet anywhere; a launcher often has said where. No other machine has to reach them.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        for name in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.update(RANK=str(ranks.rank), WORLD_SIZE=str(ranks.world_size), LOCAL_RANK=str(ranks.local_rank))
    device_id = torch.device("cuda", ranks.local_rank) if config.backend in transport.BOUND_TO_DEVICE else None
    try:
        where: dict[str, Any] = {}
        if os.environ.get("MASTER_ADDR") == "127.0.0.1" and not served:
            store = _local_store(ranks, config.timeout_s)
            where = {"store": store, "rank": ranks.rank, "world_size": ranks.world_size}
        timeout = timedelta(seconds=config.timeout_s)
        dist.init_process_group(config.backend, timeout=timeout, device_id=device_id, **where)
    except (dist.DistNetworkError, dist.DistStoreError, OSError, ValueError) as error:
        place = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).strip().splitlines()[0]
        fix = "set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there"
        raise UsageError(f"the processes cannot meet at {place} ({reason}): {fix}", 1, ranks.local_rank) from None
    if (connected := dist.get_world_size()) != ranks.world_size:
        # A backend may count for itself, whatever torch is told.
        sentence = f"{ranks.world_size} processes were started, and {config.backend} connects {connected}"
        fix = f"start them with the launcher of the {config.backend} that this torch was built with"
        raise UsageError(f"{sentence}: {fix}", 1)


def _local_store(ranks: Ranks, timeout_s: float) -> TCPStore:
    """Return the rendezvous at MASTER_PORT of this machine, which rank 0 serves to this machine alone.

    Torch itself would serve it on every interface, to anyone.
    """
    port, serves = int(os.environ["MASTER_PORT"]), ranks.rank == 0
    settings: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    if serves:
        settings["master_listen_fd"] = socket.create_server(("127.0.0.1", port)).detach()
    return TCPStore("127.0.0.1", port, ranks.world_size, serves, **settings)


def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Let BatchNorm normalize over the samples of all processes.

    Raises:
        UsageError: on a CPU, for which torch has no such layer.
    """
    if idist.device().type == "cpu":
        raise UsageError("BatchNorm cannot be synchronized on a CPU: leave distributed.sync_batchnorm false")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


def wrap_model(model: nn.Module, averaging: Averaging) -> nn.Module:
    """Move the model to this process's device and let its gradients be averaged over the processes.

    Raises:
        UsageError: if the backend cannot carry gradients of their type.
    """
    if averaging.strategy == "fsdp2" and idist.get_world_size() > 1:
        from .. import sharding

        return sharding.shard(model)
    model = model.to(idist.device())
    if idist.get_world_size() == 1:
        return model
    if others := _travel_otherwise(model):
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, others)
    if transport.TYPES:
        # As bytes; each step then does so with the buffers.
        collectives.broadcast([*model.parameters(), *model.buffers()])
    # The gradients live in the buffers that are sent: one copy less for each step.
    wrapped = nn.parallel.DistributedDataParallel(
        model,
        gradient_as_bucket_view=True,
        bucket_cap_mb=averaging.bucket_mib,
        static_graph=averaging.static_graph,
    )
    # Newer versions of torch warn of the argument of this name.
    wrapped.broadcast_buffers = not transport.TYPES
    by_tree = averaging.compression == "none" and _tree_is_faster(model)
    if averaging.compression == "none" and not averaging.ready and not by_tree:
        # Torch's own exchange takes no turn of Python.
        return wrapped
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    state: Any = None
    hooks: dict[str, Any] = {
        "none": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "powersgd": powerSGD_hook.powerSGD_hook,
    }
    send = average_by_tree if by_tree else hooks[averaging.compression]
    if averaging.compression == "powersgd":
        # What is left out of one exchange is added to the next one.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=POWERSGD_STARTS_AT)

    # Torch refuses annotations that are not the types themselves.
    def exchange(state, bucket):  # type: ignore[no-untyped-def]
        if averaging.ready and bucket.is_last():
            averaging.ready()
        if state and bucket.buffer().is_sparse:
            raise UsageError("powersgd cannot compress sparse gradients: choose distributed.compression none", 1)
        sent = send(state, bucket)
        if state and idist.backend() == "gloo":
            # Its later exchanges begin when the first is done, and each process would mix those of several buckets otherwise.
            sent.wait()
        return sent

    wrapped.register_comm_hook(state, exchange)
    if by_tree:
        # So that a profile times the same.
        wrapped.by_tree = add_by_tree  # type: ignore[assignment]
    return wrapped


def _travel_otherwise(model: nn.Module) -> list[str]:
    """Return the names of weights and buffers that DistributedDataParallel cannot send: sparse ones, and of other types.

    Raises:
        UsageError: if gradients are among them.
    """
    others = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        carried = not transport.TYPES or str(tensor.dtype).removeprefix("torch.") in transport.TYPES
        if not carried and tensor.requires_grad:
            fix = "let create_model return it in float32"
            raise UsageError(f"{transport.NAME} carries no gradients of {tensor.dtype}, as {name} has them: {fix}", 1)
        if not carried or tensor.layout != torch.strided:
            others.append(name)
    return others


def _tree_is_faster(model: nn.Module) -> bool:
    """Tell whether gradients are so few that their exchange is a matter of messages, and between processes of one machine."""
    size = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    by_gloo = idist.backend() == "gloo" and idist.device().type == "cpu"
    return by_gloo and idist.get_nnodes() == 1 and size <= FEW_BYTES


def average_by_tree(_: object, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average gradients up a tree, as a hook of DistributedDataParallel; sparse ones go torch's own way."""
    gradients = bucket.buffer()
    if gradients.is_sparse:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(None, bucket)  # type: ignore[arg-type]
    add_by_tree(gradients, bucket.index())
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients.div_(dist.get_world_size()))
    return done


def add_by_tree(tensor: Tensor, tag: int = 0) -> None:
    """Replace ``tensor`` by its sum over all ranks, which goes up a binary tree to rank 0, and down again.

    That takes 2 log2(n) messages, one after the other, where gloo's ring takes 2(n-1). No two ranks send to each other at the
    same time: gloo's thread would spin until it gets a lock that the sending thread holds, and keep that one from its core.
    """
    UNDER_WAY.append(f"the exchange of gradients, {tensor.nbytes:,} bytes up a tree and down again")
    rank, world_size, distance = dist.get_rank(), dist.get_world_size(), 1
    others = torch.empty_like(tensor)
    while distance < world_size and not rank & distance:
        if rank + distance < world_size:
            dist.recv(others, rank + distance, tag=tag)
            tensor += others
        distance *= 2
    if rank:
        dist.send(tensor, rank - distance, tag=tag)
        dist.recv(tensor, rank - distance, tag=tag)
    while distance > 1:
        distance //= 2
        if rank + distance < world_size:
            dist.send(tensor, rank + distance, tag=tag)
    UNDER_WAY.clear()


def wrap_optimizer(optimizer: Optimizer, model: nn.Module, averaging: Averaging) -> Optimizer:
    """Return the optimizer, of which each process keeps a part with zero1; the wrapped model averages the gradients."""
    if averaging.strategy != "zero1" or idist.get_world_size() == 1:
        return optimizer
    from .. import sharding

    return sharding.share_out_state(optimizer)


def no_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Let a backward pass inside the ``with`` block add to the gradients of this process alone."""
    if enabled and isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    if collectives.is_shared_out(model):
        model.set_requires_gradient_sync(not enabled)  # type: ignore[operator]
    return nullcontext()


def optimizer_step(optimizer: Optimizer, scaler: torch.amp.GradScaler, clip_norm: float | None = None) -> Tensor | None:
    """Update the weights.

    Args:
        scaler: has scaled the loss, and skips a step with infinite gradients.
        clip_norm: scale the averaged gradients of all processes down to this norm.

    Returns the norm of these gradients before, on the device, where it is computed.
    """
    norm = None
    if clip_norm is not None:
        scaler.unscale_(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = collectives.whole(nn.utils.clip_grad_norm_(parameters, clip_norm))
    scaler.step(optimizer)
    scaler.update()
    return norm


def lost_peer(error: BaseException) -> str:
    """Return what an exchange says that failed because of another process; nothing for any other error."""
    # What gloo throws names a file of its source, and ends with advice.
    said = re.search(r"^\[\S+/gloo/\S+ (?:Read error \S+ )?(.*?)(?:\. This is typically|\n|$)", str(error))
    said = said or re.search("^(Application timeout caused pair closure)", str(error))
    if type(error) is RuntimeError and said:
        return said[1]
    if isinstance(error, dist.DistBackendError):
        return str(error).strip().splitlines()[-1]
    return ""


def silent_ranks() -> str:
    """Return which ranks did not come to an exchange that failed; every rank that did has to call it.

    The first of those that came says it.
    """
    answers: list[str] = []
    # Where the process that keeps the store hangs too, torch would wait for its answer for ever.
    asking = threading.Thread(target=lambda: answers.append(_roll_call()), daemon=True)
    if dist.is_initialized():
        asking.start()
        asking.join(3 * ROLL_CALL_S)
    return answers[0] if answers else STORE_IS_SILENT if asking.is_alive() else ""


def _roll_call() -> str:
    """Return which ranks have not come within a few seconds, if this one is the first of those that have."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(seconds=ROLL_CALL_S))
    try:
        store.set(f"waits/{rank}", "")
        time.sleep(ROLL_CALL_S)
        if any(store.check([f"waits/{lower}"]) for lower in range(rank)):
            return ""
        gone = [str(other) for other in range(world_size) if not store.check([f"waits/{other}"])]
    except (dist.DistNetworkError, dist.DistStoreError):
        return STORE_IS_SILENT
    if not gone:
        return ""
    ranks = "rank" if len(gone) == 1 else "ranks"
    return f"{ranks} {', '.join(gone)} of {world_size} did not come to {_last_exchange()}"


def _last_exchange() -> str:
    """Return the exchange that this process began last, as far as it is known."""
    if UNDER_WAY:
        return UNDER_WAY[0]
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]
    except ImportError:  # older versions of torch
        return "an exchange"
    entries = json.loads(_dump_fr_trace_json(True, False))["entries"]
    return f"{entries[-1]['profiling_name']}, exchange {entries[-1]['collective_seq_id']}" if entries else "an exchange"


def all_reduce_sum(tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over all processes, and wait for that."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    # Reading a number waits for the device.
    tensor.flatten()[0].item()


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all processes, by rank; they are pickled."""
    values = [value] * idist.get_world_size()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values
