"""Communication between processes by Horovod, over gloo."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from ..report import Check, UsageError, report_failure
from . import Ranks, backend

try:
    import horovod.torch as hvd
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # If it was built without torch, the first line only warns.
    from horovod.torch.mpi_ops import gloo_built
except ImportError as error:
    raise UsageError(f"Horovod was not built for this torch ({error}). Run scripts/install_horovod.sh.", 1) from None

import ignite.distributed as idist

Value = TypeVar("Value")

CONNECT_LIMIT_S = 60.0


def checks(settings: Any) -> Iterator[Check]:
    """Yield a check that this Horovod has gloo."""
    built = bool(gloo_built())
    yield Check("backend", built, f"Horovod was built with{'' if built else 'out'} gloo", backend.FIX)


def join(settings: Any, ranks: Ranks | None) -> None:
    """Join the other processes as ``ranks``; without ranks, this process is the only one.

    Raises:
        UsageError: if the processes do not find each other.
    """
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(round(settings.timeout_s), 1))
    _require_own_address()
    # The launcher may serve the rendezvous, or Horovod may get the ranks from MPI.
    served = "HOROVOD_RANK" in os.environ or (hvd.mpi_built() and "RANK" not in os.environ)
    if ranks and ranks.world_size > 1 and not served:
        _rendezvous(ranks, max(CONNECT_LIMIT_S, settings.timeout_s))
    idist.initialize("horovod")
    watch.start(settings.timeout_s)


class Watch:
    """Ends this process if a collective takes longer than ``distributed.timeout_s``.

    Horovod would wait for ever for a rank that hangs, because its own thread on that rank still responds.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.limit_s = 0.0

    def start(self, limit_s: float) -> None:
        """Start watching in a thread: a waiting collective does not hold the GIL."""
        started, self.limit_s = self.limit_s > 0, limit_s
        if not started:
            model = idist.comp_models.horovod._HorovodDistModel
            for name in ("_do_all_reduce", "_do_all_gather", "_do_broadcast", "barrier"):
                setattr(model, name, self.collective()(getattr(model, name)))
            threading.Thread(target=self._wait, daemon=True).start()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Limit the time inside the ``with`` block."""
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = None

    def _wait(self) -> None:
        while (since := self.since) is None or time.monotonic() - since < self.limit_s:
            time.sleep(min(self.limit_s / 10, 1.0))
        reason = f"the collective timed out after the {self.limit_s:g} s of distributed.timeout_s"
        report_failure(TimeoutError(reason), idist.get_rank(), reason)
        os._exit(1)


watch = Watch()


def _require_own_address() -> None:
    """Raise UsageError unless the host name is an address of this machine: gloo would abort the process."""
    host, reason = platform.node(), ""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                try:
                    probe.bind(address)
                    return
                except OSError as error:
                    reason = f"resolves to {address[0]}, which is not an address of this machine ({error.strerror})"
    except OSError:
        reason = "cannot be resolved"
    raise UsageError(f"the host name {host} {reason}. Fix /etc/hosts or the DNS.", 1)


def _rendezvous(ranks: Ranks, limit_s: float) -> None:
    """Set Horovod's ranks, and serve its rendezvous on rank 0, at MASTER_ADDR and MASTER_PORT."""
    nodes = ranks.world_size // ranks.local_world_size
    # On one machine, the loopback interface is enough.
    loopback = "127.0.0.1" if nodes == 1 else ""
    address, number = loopback or os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT") or "29500"
    if not (number.isdecimal() and 0 < int(number) < 2**16):
        raise UsageError(f"MASTER_PORT {number} is not a port. Set it to 29500, for example.", 1)
    port = int(number)
    if not address:
        raise UsageError("MASTER_ADDR is not set. Set it to the host of rank 0, and MASTER_PORT to a free port.", 1)
    try:
        resolved = socket.gethostbyname(address)
    except OSError:
        raise UsageError(f"MASTER_ADDR {address} cannot be resolved. Add it to /etc/hosts or to the DNS.", 1) from None
    variables = {"RANK": ranks.rank, "SIZE": ranks.world_size, "LOCAL_RANK": ranks.local_rank}
    variables |= {"LOCAL_SIZE": ranks.local_world_size, "CROSS_RANK": ranks.rank // ranks.local_world_size}
    variables |= {"CROSS_SIZE": nodes, "GLOO_RENDEZVOUS_PORT": port}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in variables.items()})
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_HOSTNAME=platform.node())
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = resolved
    if loopback:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo0" if sys.platform == "darwin" else "lo")
    if ranks.rank == 0:
        try:
            server = RendezvousHTTPServer((loopback, port), RendezvousHandler, 0)
        except OSError as error:
            raise UsageError(f"MASTER_PORT {port}: {error.strerror}. Set it to a free port.", 1) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"rank 0 did not answer at {address}:{port} within {limit_s:g} s ({error}). Set MASTER_ADDR to its "
                    "host, and check that it has started.",
                    1,
                ) from None
            time.sleep(0.1)


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model itself: ``average`` is called after the backward pass."""
    return model


def average(tensors: list[Tensor]) -> None:
    """Replace tensors of one dtype by their means over the ranks."""
    # Horovod requires contiguous tensors; those that are, are not copied.
    means = [tensor.contiguous() for tensor in tensors]
    with watch.collective():
        # With the same name, Horovod reuses the negotiation of the previous step.
        hvd.grouped_allreduce_(means, op=hvd.Average, name=f"gradients.{tensors[0].dtype}")
    for tensor, mean in zip(tensors, means, strict=True):
        tensor.copy_(mean)


def all_gather_object(value: Value) -> list[Value]:
    """Return the values of all ranks; they are pickled."""
    with watch.collective():
        # The default is the name of the type: ranks with different types would wait for ever.
        values: list[Value] = hvd.allgather_object(value, name="values")
    return values


def lost_peer(error: BaseException) -> str:
    """Return why another process made a collective fail; an empty text for other errors."""
    found = re.search(r"Horovod has been shut down.*|/gloo/\S+ .*", str(error))
    return found[0] if found and isinstance(error, RuntimeError) else ""
