"""Can the nodes of a cluster reach each other, and how fast? ``doctor --nnodes N`` on each of them at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import ignite.distributed as idist
import torch
from torch import Tensor
from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from .distributed import backend, transport
from .errors import UsageError

LIMIT_S = 60.0
CONNECT_LIMIT_S = 5.0
# bytes that a connection carries to show its speed, and how many of them are sent at a time
STREAM = 256 * 2**20
PIECE = 2**20


def meet(nnodes: int, timeout_s: float) -> int:
    """Let every node connect to every other one, as a training does; return the exit code.

    A node waits for the others for a minute, or ``timeout_s`` if that is less.

    Raises:
        UsageError: in one sentence, if they cannot.
    """
    limit_s = min(LIMIT_S, timeout_s)
    host, address = platform.node(), own_address()
    master, text = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT") or "29500"
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        raise UsageError(f"MASTER_PORT is the number of a port, such as 29500, not {text}")
    port = int(text)
    if not master:
        raise UsageError("set MASTER_ADDR to the host name of one node, the same on each of them")
    try:
        master_address = socket.gethostbyname(master)
    except OSError:
        raise UsageError(f"{host} cannot resolve MASTER_ADDR {master}: add it to /etc/hosts or to the DNS", 1) from None
    if address.startswith("127."):
        sentence = f"{host} resolves to {address} here, where other nodes cannot reach it"
        other = f", or set {transport.INTERFACE} to the interface they can reach" if transport.INTERFACE else ""
        raise UsageError(f"{sentence}: fix /etc/hosts{other}", 1)

    is_master = _is_mine(master_address)
    try:
        # Without libuv, which Debian's torch is built without.
        store = TCPStore(
            master,
            port,
            is_master=is_master,
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,
            use_libuv=False,
        )
    except (DistNetworkError, DistStoreError) as error:
        if is_master:
            raise UsageError(f"{host} cannot listen on port {port} ({error}): choose another MASTER_PORT", 1) from None
        sentence = f"{host} cannot reach {master_address}:{port} within {limit_s:.0f} s"
        fix = f"run this on {master} too, and open port {port} in its firewall"
        raise UsageError(f"{sentence}: {fix}", 1) from None

    try:
        # Nobody takes the connections out of the queue.
        server = socket.create_server((address, 0), backlog=nnodes)
    except OSError as error:
        sentence = f"{host} resolves to {address}, where this machine cannot listen ({error.strerror})"
        other = f", or set {transport.INTERFACE}" if transport.INTERFACE else ""
        raise UsageError(f"{sentence}: fix /etc/hosts or the DNS{other}", 1) from None
    with server:
        number = store.add("nodes", 1) - 1
        place = {"host": host, "address": address, "port": server.getsockname()[1]}
        store.set(f"place {number}", json.dumps(place))
        came = number + 1
        try:
            others = [json.loads(store.get(f"place {other}")) for other in range(nnodes) if other != number]
            unreachable = [f"{other['host']} at {other['address']}" for other in others if not _reaches(other)]
            # Everyone has tried before anyone closes.
            said = "; ".join(f"{host} cannot reach {other}" for other in unreachable)
            store.set(f"said {number}", said)
            sentences = [store.get(f"said {other}").decode() for other in range(nnodes)]
            store.add("done", 1)
        except (DistNetworkError, DistStoreError):
            # The node that keeps the store may have given up already.
            with suppress(DistNetworkError, DistStoreError):
                came = store.add("nodes", 0)
            sentence = f"{came} of {nnodes} nodes came within {limit_s:.0f} s: run this on each of them"
            raise UsageError(sentence, 1) from None
        if is_master:
            _wait_for(store, nnodes, limit_s)
    failures = "; ".join(sentence for sentence in sentences if sentence)
    if failures:
        other = f", set {transport.INTERFACE}" if transport.INTERFACE else ""
        fix = f"let host names resolve to addresses that the others reach{other}, or open the firewall"
        raise UsageError(f"{failures}: {fix}", 1)
    hosts = ", ".join(sorted(f"{node['host']} {node['address']}" for node in (place, *others)))
    print(f"every node reaches every other one: {hosts}")
    return 0


def time_all_reduce(size: int, add: Callable[[Tensor], None] | None = None) -> list[dict[str, float]]:
    """Return the median time of adding up tensors of 1 KB and of ``size`` bytes over all processes: delay and bandwidth.

    Every rank must call it. ``add`` replaces a tensor by its sum; by default, the backend does.
    """
    add = add or backend.all_reduce_sum
    world_size, measured = idist.get_world_size(), []
    for length, repetitions in ((1024, 50), (size, 5)):
        tensor = torch.ones(length // 4, device=idist.device())
        seconds = []
        for _ in range(repetitions + 1):
            started = time.perf_counter()
            add(tensor)
            seconds.append(time.perf_counter() - started)
            tensor.fill_(1.0)
        median = statistics.median(seconds[1:])
        # What each process must send and receive at least, by whatever path.
        bandwidth = 2 * (world_size - 1) / world_size * length / median
        measured.append({"bytes": length, "milliseconds": median * 1e3, "bus_bandwidth_gb_per_s": bandwidth / 1e9})
    return measured


def stream_speed() -> float:
    """Return the bytes per second of one TCP connection from the last rank to rank 0; 0 if there is none.

    Every rank must call it. The time is taken from the first byte to the last.
    """
    rank, last = idist.get_rank(), idist.get_world_size() - 1
    speed, server, place = 0.0, None, None
    if rank == 0:
        with suppress(OSError, UsageError):
            address = "127.0.0.1" if idist.get_nnodes() == 1 else own_address()
            server = socket.create_server((address, 0))
            server.settimeout(CONNECT_LIMIT_S)
            place = server.getsockname()
    place = backend.all_gather_object(place)[0]
    with suppress(OSError):
        if server:
            with server, server.accept()[0] as connection:
                connection.settimeout(LIMIT_S)
                speed = _receive(connection)
        elif rank == last and place:
            with socket.create_connection(place, timeout=CONNECT_LIMIT_S) as connection:
                connection.settimeout(LIMIT_S)
                for _ in range(STREAM // PIECE):
                    connection.sendall(bytes(PIECE))
    return float(idist.all_reduce(speed, "MAX"))


def _receive(connection: socket.socket) -> float:
    piece = bytearray(PIECE)
    received = connection.recv_into(piece)
    started = time.perf_counter()
    while count := connection.recv_into(piece):
        received += count
    return received / (time.perf_counter() - started)


def own_address() -> str:
    """Return the address at which gloo lets other nodes reach this one: of ``transport.INTERFACE``, else of its host name.

    Raises:
        UsageError: if there is none.
    """
    if interface := os.environ.get(transport.INTERFACE):
        get_address = 0x8915  # SIOCGIFADDR of Linux
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", interface.encode()[:15]))
            except OSError:
                names = ", ".join(name for _, name in socket.if_nameindex())
                sentence = f"{transport.INTERFACE} {interface} has no IPv4 address here: choose one of {names}"
                raise UsageError(sentence, 1) from None
        return socket.inet_ntoa(answer[20:24])
    try:
        return socket.gethostbyname(platform.node())
    except OSError:
        raise UsageError(
            f"{platform.node()} cannot resolve its own name: add it to /etc/hosts or to the DNS", 1
        ) from None


def _is_mine(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _reaches(other: dict[str, str]) -> bool:
    try:
        socket.create_connection((other["address"], int(other["port"])), timeout=CONNECT_LIMIT_S).close()
    except OSError:
        return False
    return True


def _wait_for(store: TCPStore, nnodes: int, limit_s: float) -> None:
    """Keep the store open until every node has read it, unless one has gone."""
    deadline = time.monotonic() + limit_s
    while store.add("done", 0) < nnodes and time.monotonic() < deadline:
        time.sleep(0.05)
