"""The program of a rank other than 0: it mirrors rank 0's calls, prints nothing, and exits when rank 0 exits."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from triforce_chat.loading.garbage import no_garbage_collection
from triforce_chat.parallel.commands import Call, Failure, Load, Shutdown, Step
from triforce_chat.parallel.failure import describe_error, is_lost_peer
from triforce_chat.parallel.rank_info import RankInfo
from triforce_chat.parallel.rendezvous import connect_to_rank_zero, join_store, torchrun_store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from triforce_chat.engine.engine import Engine

PR_SET_PDEATHSIG = 1
SHUTDOWN = pickle.dumps(Shutdown())
PATIENCE = 3.0  # seconds until rank 0 has noticed a lost rank and shut down the others


class Stopped(Exception):
    """Rank 0 has sent Shutdown."""


class Inbox:
    """Receives rank 0's commands, or a driver's. When the connection closes the process exits at once: no rank outlives
    rank 0.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.shut_down = threading.Event()
        self._commands: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, name="rank 0", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the next command and return it. Raises Stopped if it is Shutdown."""
        command = pickle.loads(self._commands.get())
        if isinstance(command, Shutdown):
            raise Stopped
        return command

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                command = self.connection.recv_bytes()
                self._commands.put(command)
                if command == SHUTDOWN:
                    self.shut_down.set()
        os._exit(0)


def run_started(descriptor: int, rank: int, size: int) -> None:
    """The main function of a rank that rank 0 started; ``descriptor`` is its end of the pipe."""
    end_with_parent()
    info = RankInfo(rank, rank, size, size)
    inbox = open_inbox(Connection(descriptor))
    run(inbox, info, lambda: join_store(inbox.receive(), size))


def run_launched(info: RankInfo) -> None:
    """The main function of a rank that torchrun started."""
    store = torchrun_store()
    run(open_inbox(connect_to_rank_zero(store, info.rank)), info, lambda: store)


def open_inbox(connection: Connection) -> Inbox:
    """The inbox of a process that another one started, and that leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process handles the terminal's
    return Inbox(connection)


def run(inbox: Inbox, info: RankInfo, store: Callable[[], Store]) -> None:
    """Execute commands until Shutdown. An error is reported to rank 0 and ends this process."""
    try:
        execute_commands(inbox, info, store)
    except BaseException as error:
        if is_lost_peer(error) and inbox.shut_down.wait(PATIENCE):
            os._exit(0)
        message, exit_code = describe_error(error)
        with suppress(OSError):
            inbox.connection.send_bytes(pickle.dumps(Failure(message, exit_code, traceback.format_exc())))
        os._exit(exit_code)


def execute_commands(inbox: Inbox, info: RankInfo, store: Callable[[], Store]) -> None:
    """Execute rank 0's commands until Shutdown, then leave the process group."""
    with no_garbage_collection():
        from triforce_chat.parallel.rank_loader import RankLoader

        loader = RankLoader(info, store())
    engine: Engine | None = None
    with suppress(Stopped):
        while True:
            command = inbox.receive()
            if isinstance(command, Load):
                engine, _ = loader.load(command.spec)
            elif engine is not None:
                execute(engine, command, inbox)
    loader.close()


def execute(engine: Engine, call: Call, inbox: Inbox) -> None:
    """Call a method of the engine. A generator is advanced and closed as rank 0 commands."""
    events = getattr(engine, call.method)(*call.arguments)
    if isinstance(events, Generator):
        with closing(events):
            for _ in events:
                if inbox.receive() is not Step.NEXT:
                    return


def end_with_parent() -> None:
    """Have Linux kill this process when rank 0 dies, even while an import keeps it from reading the connection."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
