"""The command ``network``: can the nodes of a cluster connect to each other? Started on each of them at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import struct
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

# Otherwise torch prints a stack trace of its own for each failed connection.
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"

from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from ...config import Config
from ...runtime import UsageError

LIMIT_S = 60.0
CONNECT_LIMIT_S = 5.0
# Names the network interface that gloo uses between nodes.
INTERFACE = "GLOO_SOCKET_IFNAME"
FIX = f"Make host names resolve to addresses that other nodes reach, set {INTERFACE}, or open the firewall."


def network(config: Config, options: dict[str, Any]) -> int:
    """Meet ``--nnodes`` nodes at MASTER_ADDR:MASTER_PORT, and let each connect to every other; return the exit code.

    Raises:
        UsageError: in one line, if they cannot.
    """
    nnodes, limit_s = options["nnodes"], min(LIMIT_S, config.distributed.timeout_s)
    host, address = platform.node(), own_address()
    store, serves = open_store(limit_s)
    try:
        # The queue of the socket accepts connections.
        server = socket.create_server((address, 0), backlog=nnodes)
    except OSError as error:
        raise UsageError(f"{host} resolves to {address}, where it cannot listen ({error.strerror}). {FIX}", 1) from None
    with server:
        number = store.add("nodes", 1) - 1
        place = {"host": host, "address": address, "port": server.getsockname()[1]}
        store.set(f"place {number}", json.dumps(place))
        came = number + 1
        try:
            others = [json.loads(store.get(f"place {other}")) for other in range(nnodes) if other != number]
            lost = [
                f"{host} cannot reach {other['host']} at {other['address']}" for other in others if not reaches(other)
            ]
            # No node closes its socket before all have tried.
            store.set(f"lost {number}", "; ".join(lost))
            everyones = [store.get(f"lost {other}").decode() for other in range(nnodes)]
            store.add("done", 1)
        except (DistNetworkError, DistStoreError):
            # The node that serves the store may have given up.
            with suppress(DistNetworkError, DistStoreError):
                came = store.add("nodes", 0)
            raise UsageError(
                f"{came} of {nnodes} nodes came within {limit_s:.0f} s. Start this on each of them.", 1
            ) from None
        deadline = time.monotonic() + limit_s
        while serves and store.add("done", 0) < nnodes and time.monotonic() < deadline:
            time.sleep(0.05)
    if failures := "; ".join(filter(None, everyones)):
        raise UsageError(f"{failures}. {FIX}", 1)
    hosts = ", ".join(sorted(f"{node['host']} {node['address']}" for node in (place, *others)))
    print(f"every node reaches every other one: {hosts}")
    return 0


def open_store(limit_s: float) -> tuple[TCPStore, bool]:
    """Serve the store if MASTER_ADDR is this node, else connect to it; return it, and whether this node serves it."""
    host, master, port = platform.node(), os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT") or "29500"
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"MASTER_PORT {port} is not a port. Set it to 29500, for example.")
    if not master:
        raise UsageError("MASTER_ADDR is not set. Set it to the host name of one node, the same on each of them.")
    try:
        address = socket.gethostbyname(master)
    except OSError:
        raise UsageError(
            f"{host} cannot resolve MASTER_ADDR {master}. Add it to /etc/hosts or to the DNS.", 1
        ) from None
    serves = is_here(address)
    options: dict[str, Any] = {"timeout": timedelta(seconds=limit_s), "wait_for_workers": False}
    try:
        # Without libuv, which Debian's torch lacks.
        return TCPStore(master, int(port), is_master=serves, use_libuv=False, **options), serves
    except (DistNetworkError, DistStoreError) as error:
        if serves:
            raise UsageError(f"{host} cannot listen on port {port} ({error}). Choose another MASTER_PORT.", 1) from None
        fix = f"Start this on {master} too, and open port {port} in its firewall."
        raise UsageError(f"{host} cannot reach {address}:{port} within {limit_s:.0f} s. {fix}", 1) from None


def is_here(address: str) -> bool:
    """Return whether an address belongs to this node."""
    with socket.socket() as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def own_address() -> str:
    """Return the address of this node for others: that of the interface in ``INTERFACE``, else of its host name."""
    host, interface = platform.node(), os.environ.get(INTERFACE)
    if interface:
        get_address = 0x8915  # SIOCGIFADDR of Linux
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", interface.encode()[:15]))
            except OSError:
                names = ", ".join(name for _, name in socket.if_nameindex())
                raise UsageError(f"{INTERFACE} {interface} has no IPv4 address. Use one of {names}.", 1) from None
        address = socket.inet_ntoa(found[20:24])
    else:
        try:
            address = socket.gethostbyname(host)
        except OSError:
            raise UsageError(f"{host} cannot resolve its own name. Add it to /etc/hosts or to the DNS.", 1) from None
    if address.startswith("127."):
        raise UsageError(f"{host} resolves to {address}, which other nodes cannot reach. {FIX}", 1)
    return address


def reaches(other: dict[str, Any]) -> bool:
    """Return whether a connection to another node succeeds."""
    try:
        socket.create_connection((other["address"], other["port"]), timeout=CONNECT_LIMIT_S).close()
    except OSError:
        return False
    return True
