"""How the processes meet and exchange: by Horovod, over gloo."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import Check
from ..config import Averaging, DistributedConfig, Ranks
from ..errors import UsageError
from ..failures import tell
from . import transport

try:
    import horovod.torch as hvd
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # Where it was built without torch, the first line only warns.
    from horovod.torch.mpi_ops import gloo_built
except ImportError as error:
    raise UsageError(f"Horovod is not built for this torch ({error}): {transport.FIX}", 1) from None

# After that, as it fails where Horovod lacks something.
import ignite.distributed as idist

from .. import collectives

Value = TypeVar("Value")

# One kernel updates all weights, instead of several for each of them.
FUSED_OPTIMIZER = True
# Whether optimizer_step averages the gradients; else they are averaged before, by what wrap_model or wrap_optimizer add.
STEP_AVERAGES = False
CONNECT_LIMIT_S = 60.0


def checks(config: DistributedConfig) -> Iterator[Check]:
    """Yield whether this Horovod can exchange."""
    built = bool(gloo_built())
    yield Check("backend", built, f"Horovod was built with{'' if built else 'out'} gloo", transport.FIX)


def join(config: DistributedConfig, ranks: Ranks | None) -> None:
    """Join the other processes, among which this one has ``ranks``; without ranks it trains alone.

    Raises:
        UsageError: if rank 0 cannot be reached.
    """
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(round(config.timeout_s), 1))
    _require_own_address()
    # What starts the processes may serve the rendezvous itself, or Horovod may be built to learn the ranks from it.
    is_told = "HOROVOD_RANK" in os.environ or (hvd.mpi_built() and "RANK" not in os.environ)
    if ranks and ranks.world_size > 1 and not is_told:
        _rendezvous(ranks, max(CONNECT_LIMIT_S, config.timeout_s))
    idist.initialize("horovod")
    watch.begin(config.timeout_s)


class Watch:
    """Ends this process when it has waited too long for the others in an exchange.

    Where the training of a rank hangs while its process lives, Horovod's own thread still answers for it, so that Horovod
    itself would wait for ever.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.limit_s: float | None = None

    def begin(self, limit_s: float) -> None:
        """Look from now on, in a thread of its own; what waits for an exchange lets go of Python's lock."""
        is_first, self.limit_s = self.limit_s is None, limit_s
        if is_first:
            model = idist.comp_models.horovod._HorovodDistModel
            # Those by which ignite exchanges.
            for name in ("_do_all_reduce", "_do_all_gather", "_do_broadcast", "barrier"):
                setattr(model, name, self.exchange()(getattr(model, name)))
            threading.Thread(target=self._look, daemon=True).start()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Watch what waits for the other ranks inside the ``with`` block."""
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = None

    def _look(self) -> None:
        while (since := self.since) is None or time.monotonic() - since < (self.limit_s or 0):
            time.sleep(min((self.limit_s or 0) / 10, 1.0))
        why = f"the exchange has timed out, after the {self.limit_s:g} s of distributed.timeout_s"
        tell(TimeoutError(why), idist.get_rank(), why, silent_ranks)
        os._exit(1)


watch = Watch()


def _require_own_address() -> None:
    """Refuse a host name that is no address of this machine: gloo would abort the process, whatever HOROVOD_GLOO_IFACE says.

    Raises:
        UsageError: if it is none.
    """
    host, why = platform.node(), ""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                try:
                    probe.bind(address)
                    return
                except OSError as error:
                    why = f"resolves to {address[0]}, where this machine cannot listen ({error.strerror})"
    except OSError:
        why = "cannot be resolved"
    raise UsageError(f"{host}, the host name of this machine, {why}: fix /etc/hosts or the DNS", 1)


def _rendezvous(ranks: Ranks, limit_s: float) -> None:
    """Tell Horovod the ranks, and let rank 0 serve the rendezvous of all at MASTER_ADDR and MASTER_PORT."""
    nodes = ranks.world_size // ranks.local_world_size
    # On one machine, no other one can connect.
    here = "127.0.0.1" if nodes == 1 else ""
    address, asked = here or os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT") or "29500"
    if not (asked.isdecimal() and 0 < int(asked) < 2**16):
        raise UsageError(f"MASTER_PORT is the number of a port, such as 29500, not {asked}", 1)
    port = int(asked)
    if not address:
        raise UsageError("set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there", 1)
    try:
        resolved = socket.gethostbyname(address)
    except OSError:
        fix = "add it to /etc/hosts or to the DNS"
        raise UsageError(f"{platform.node()} cannot resolve MASTER_ADDR {address}: {fix}", 1) from None
    told = {"RANK": ranks.rank, "SIZE": ranks.world_size, "LOCAL_RANK": ranks.local_rank}
    told |= {"LOCAL_SIZE": ranks.local_world_size, "CROSS_RANK": ranks.rank // ranks.local_world_size}
    told |= {"CROSS_SIZE": nodes, "GLOO_RENDEZVOUS_PORT": port}
    os.environ.update({f"HOROVOD_{name}": str(number) for name, number in told.items()})
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_HOSTNAME=platform.node())
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = resolved
    if here:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo0" if sys.platform == "darwin" else "lo")
    if ranks.rank == 0:
        try:
            server = RendezvousHTTPServer((here, port), RendezvousHandler, 0)
        except OSError as error:
            raise UsageError(f"MASTER_PORT {port}: {error.strerror}: set it to a free port", 1) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                sentence = f"rank 0 does not answer at {address}:{port} within {limit_s:g} s ({error})"
                fix = "set MASTER_ADDR to its host, and look whether it has started"
                raise UsageError(f"{sentence}: {fix}", 1) from None
            time.sleep(0.1)


def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Refuse: Horovod has no such layer.

    Raises:
        UsageError: always.
    """
    raise UsageError("Horovod cannot synchronize BatchNorm: leave distributed.sync_batchnorm false")


def wrap_model(model: nn.Module, averaging: Averaging) -> nn.Module:
    """Move the model to this process's device and give it the weights of rank 0; the optimizer does the rest."""
    model = model.to(idist.device())
    # As bytes, whatever their types, and with the buffers that a checkpoint lacks.
    collectives.broadcast([*model.parameters(), *model.buffers()])
    return model


def wrap_optimizer(optimizer: Optimizer, model: nn.Module, averaging: Averaging) -> Optimizer:
    """Let the optimizer average the gradients over the processes, once for all backward passes of a step."""
    wrapped: Optimizer = hvd.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression=getattr(hvd.Compression, averaging.compression),
        backward_passes_per_step=averaging.accumulation_steps,
    )
    # Horovod has made it anew of its groups alone, without what else it was given, and has learned since.
    vars(wrapped).update(vars(optimizer))
    if averaging.ready and idist.get_world_size() > 1:
        ready, done, synchronize = averaging.ready, averaging.done, wrapped.synchronize  # type: ignore[attr-defined]

        def telling() -> None:
            ready()
            synchronize()
            if done:
                done()

        wrapped.synchronize = telling  # type: ignore[attr-defined]
    return wrapped


def no_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Do nothing: the optimizer counts the backward passes itself."""
    return nullcontext()


def optimizer_step(optimizer: Optimizer, scaler: torch.amp.GradScaler, clip_norm: float | None = None) -> Tensor | None:
    """Update the weights.

    Args:
        scaler: has scaled the loss, and skips a step with infinite gradients.
        clip_norm: scale the averaged gradients of all processes down to this norm.

    Returns the norm of these gradients before, on the device, where it is computed.
    """
    norm = None
    # Where Horovod averages the gradients, it does so while the backward pass runs: wait before looking at them.
    wrapped: Any = optimizer if hasattr(optimizer, "synchronize") else None
    if wrapped:
        with watch.exchange():
            wrapped.synchronize()
    scaler.unscale_(optimizer)
    if clip_norm is not None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, clip_norm)
    with wrapped.skip_synchronize() if wrapped else nullcontext():
        scaler.step(optimizer)
    scaler.update()
    return norm


def lost_peer(error: BaseException) -> str:
    """Return what an exchange says that failed because of another process; nothing for any other error."""
    said = re.search(r"Horovod has been shut down.*|/gloo/\S+ .*", str(error))
    return said[0] if said and isinstance(error, RuntimeError) else ""


def silent_ranks() -> str:
    """Return nothing: Horovod does not say which ranks did not come to an exchange."""
    return ""


def all_reduce_sum(tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over all processes, and wait for that."""
    with watch.exchange():
        hvd.allreduce_(tensor, op=hvd.Sum)
    # Reading a number waits for the device.
    tensor.flatten()[0].item()


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all processes, by rank; they are pickled."""
    # By a name of its own: the default is that of the type, and ranks with values of different types would wait for ever.
    with watch.exchange():
        values: list[Value] = hvd.allgather_object(value, name="values")
    return values
