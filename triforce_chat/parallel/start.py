"""How the ranks come together: started by rank 0, or by torchrun on one machine or several."""

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
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.team import Team

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

KEY = "triforce-chat"  # where rank 0 writes how it is reached
HERE = "127.0.0.1"
FOR_EVER = timedelta(days=365)  # a torch.distributed timeout; a user may think for a night
_START = (
    "import sys; sys.path = sys.argv[4:]; "
    "from triforce_chat.parallel.worker import started; started(*map(int, sys.argv[1:4]))"
)


def gathered(place: Place) -> tuple[Team, Store]:
    """Rank 0's lines to the others, and the store through which torch.distributed finds them."""
    if os.name == "nt":  # which hands no pipes down and has no signal for the main thread
        raise UsageError("--tp needs Linux or macOS")
    return _launched(place) if place.launched else _started(place)


def _started(place: Place) -> tuple[Team, Store]:
    pairs = [Pipe() for _ in range(place.size - 1)]
    workers = [_worker(rank, place.size, theirs) for rank, (_, theirs) in enumerate(pairs, 1)]
    team = Team([ours for ours, _ in pairs], workers)
    store = store_at(0, place.size, made=True)
    for link in team.links:
        link.send(store.port)
    return team, store


def _worker(rank: int, size: int, link: Connection) -> subprocess.Popen[bytes]:
    """A rank with ``link`` as its only tie to this process; at its end the rank ends as well."""
    numbers = (link.fileno(), rank, size)
    with link:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *map(str, numbers), *sys.path],
            pass_fds=[link.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def store_at(port: int, size: int, made: bool = False) -> TCPStore:
    """The store of ranks on this machine: rank 0 has it ``made`` at a free port (0), the others reach it there."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    reach = partial(TCPStore, HERE, world_size=size, timeout=FOR_EVER, wait_for_workers=False)
    if not made:
        store: TCPStore = reach(port=port)
        return store
    # Of itself the store listens to the whole network, and asks nobody who he is.
    listener = socket.create_server((HERE, port))
    number = listener.getsockname()[1]
    mine: TCPStore = reach(port=number, is_master=True, master_listen_fd=listener.detach())
    return mine


def _launched(place: Place) -> tuple[Team, Store]:
    """Wait for the ranks that torchrun started; where all are on this machine nobody else can reach them."""
    store = launched_store()
    alone = place.local_size == place.size
    secret = secrets.token_hex(32)
    with Listener((HERE if alone else "0.0.0.0", 0), authkey=secret.encode()) as listener:
        host = HERE if alone else os.environ["MASTER_ADDR"]
        port = listener.address[1]
        store.set(KEY, json.dumps([host, port, secret]))
        links: dict[int, Connection] = {}
        while len(links) < place.size - 1:
            if (link := _accepted(listener)) is not None:
                links[link.recv()] = link
    return Team([links[rank] for rank in sorted(links)]), store


def _accepted(listener: Listener) -> Any:
    """A rank that knows the secret; None for a stranger."""
    try:
        return listener.accept()
    except (AuthenticationError, EOFError, OSError):
        return None


def launched_store() -> Store:
    """The store that torchrun's variables name."""
    from torch.distributed.rendezvous import rendezvous

    store: Store = next(rendezvous("env://", timeout=FOR_EVER))[0]
    return store


def reached(store: Store, rank: int) -> Connection:
    """The line of a rank that torchrun started to rank 0."""
    host, port, secret = json.loads(store.get(KEY))
    link = Client((host, port), authkey=secret.encode())
    link.send(rank)
    return link
