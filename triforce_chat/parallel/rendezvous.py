"""Connects rank 0 to the other ranks. It starts them itself, or torchrun did, on one machine or several."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from datetime import timedelta
from functools import partial
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

from triforce_chat.errors import UsageError
from triforce_chat.parallel.rank_info import RankInfo
from triforce_chat.parallel.workers import Workers

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

ADDRESS_KEY = "triforce-chat"  # the store's key for rank 0's address
LOOPBACK = "127.0.0.1"
NO_TIMEOUT = timedelta(days=365)  # torch.distributed requires a timeout, but a user may think for a night
_WORKER_PROGRAM = (
    "import sys; sys.path = sys.argv[4:]; "
    "from triforce_chat.parallel.worker import run_started; run_started(*map(int, sys.argv[1:4]))"
)


def connect_workers(info: RankInfo) -> tuple[Workers, Store]:
    """Connect rank 0 to the other ranks: their connections, and the store that torch.distributed initialises from.

    Raises UsageError on Windows.
    """
    if os.name == "nt":  # no inherited pipes, no signal to the main thread
        raise UsageError("--tp needs Linux or macOS")
    return _accept_workers(info) if info.by_torchrun else _start_workers(info)


def _start_workers(info: RankInfo) -> tuple[Workers, Store]:
    pairs = [Pipe() for _ in range(info.size - 1)]
    processes = [_start_worker(rank, info.size, remote) for rank, (_, remote) in enumerate(pairs, 1)]
    workers = Workers([local for local, _ in pairs], processes)
    store = create_store(info.size)
    for connection in workers.connections:
        connection.send(store.port)
    return workers, store


def _start_worker(rank: int, size: int, connection: Connection) -> subprocess.Popen[bytes]:
    """Start a rank that inherits ``connection``. It exits when the other end of the connection is closed."""
    numbers = (connection.fileno(), rank, size)
    with connection:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", _WORKER_PROGRAM, *map(str, numbers), *sys.path],
            pass_fds=[connection.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def create_store(size: int) -> TCPStore:
    """Rank 0's store for ``size`` ranks on this machine, at a free port."""
    # Left to itself the store listens on all interfaces, without authentication.
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    store: TCPStore = _local_store(size)(port=port, is_master=True, master_listen_fd=listener.detach())
    return store


def join_store(port: int, size: int) -> TCPStore:
    """The store that rank 0 of this machine created at ``port``."""
    store: TCPStore = _local_store(size)(port=port)
    return store


def _local_store(size: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return partial(TCPStore, LOOPBACK, world_size=size, timeout=NO_TIMEOUT, wait_for_workers=False)


def _accept_workers(info: RankInfo) -> tuple[Workers, Store]:
    """Wait for the ranks that torchrun started. If all run on this machine, listen on loopback only."""
    store = torchrun_store()
    one_machine = info.local_size == info.size
    secret = secrets.token_hex(32)
    with Listener((LOOPBACK if one_machine else "0.0.0.0", 0), authkey=secret.encode()) as listener:
        host = LOOPBACK if one_machine else os.environ["MASTER_ADDR"]
        port = listener.address[1]
        store.set(ADDRESS_KEY, json.dumps([host, port, secret]))
        connections: dict[int, Connection] = {}
        while len(connections) < info.size - 1:
            if (connection := _accept(listener)) is not None:
                connections[connection.recv()] = connection
    return Workers([connections[rank] for rank in sorted(connections)]), store


def _accept(listener: Listener) -> Any:
    """The connection of a rank that knows the secret; None if the caller does not."""
    try:
        return listener.accept()
    except (AuthenticationError, EOFError, OSError):
        return None


def torchrun_store() -> Store:
    """The store that torchrun's environment variables name."""
    from torch.distributed.rendezvous import rendezvous

    store: Store = next(rendezvous("env://", timeout=NO_TIMEOUT))[0]
    return store


def connect_to_rank_zero(store: Store, rank: int) -> Connection:
    """Connect a rank that torchrun started to rank 0, whose address is in ``store``."""
    host, port, secret = json.loads(store.get(ADDRESS_KEY))
    connection = Client((host, port), authkey=secret.encode())
    connection.send(rank)
    return connection
