"""A rank other than 0: it does what rank 0 does, prints nothing, and ends when rank 0 ends."""

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

from triforce_chat.parallel.failure import deserted, last_words
from triforce_chat.parallel.orders import Call, End, Failed, Load, Step
from triforce_chat.parallel.place import Place
from triforce_chat.parallel.start import launched_store, reached, store_at

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from triforce_chat.engine.engine import Engine

PR_SET_PDEATHSIG = 1
LAST = pickle.dumps(End.END)
PATIENCE = 3.0  # seconds in which rank 0 hears of a rank that is gone


class Ended(Exception):
    """Rank 0 needs this rank no more."""


class Inbox:
    """Rank 0's orders. When its line ends this process ends, in whatever it is: no rank outlives rank 0."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self.released = threading.Event()
        self._orders: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, name="rank 0", daemon=True).start()

    def take(self) -> Any:
        """The next order, whenever it comes. Raises Ended when it is the last."""
        order = pickle.loads(self._orders.get())
        if order is End.END:
            raise Ended
        return order

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                order = self.link.recv_bytes()
                self._orders.put(order)
                if order == LAST:
                    self.released.set()
        os._exit(0)


def started(line: int, rank: int, size: int) -> None:
    """The life of a rank that rank 0 started; ``line`` is its end of the pipe."""
    end_with_parent()
    place = Place(rank, rank, size, size)
    inbox = _listening(Connection(line))
    live(inbox, place, lambda: store_at(inbox.take(), size))


def launched(place: Place) -> None:
    """The life of a rank that torchrun started."""
    store = launched_store()
    live(_listening(reached(store, place.rank)), place, lambda: store)


def _listening(link: Connection) -> Inbox:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for rank 0
    return Inbox(link)


def live(inbox: Inbox, place: Place, store: Callable[[], Store]) -> None:
    """Follow rank 0 to the end; an error is told and ends this process."""
    try:
        follow(inbox, place, store())
    except BaseException as error:
        if deserted(error) and inbox.released.wait(PATIENCE):
            os._exit(0)
        text, exit_code = last_words(error)
        with suppress(OSError):
            inbox.link.send_bytes(pickle.dumps(Failed(text, exit_code, traceback.format_exc())))
        os._exit(exit_code)


def follow(inbox: Inbox, place: Place, store: Store) -> None:
    """Do what rank 0 orders until it orders the end."""
    from triforce_chat.parallel.share import Share

    share = Share(place, store)
    engine: Engine | None = None
    with suppress(Ended):
        while True:
            order = inbox.take()
            if isinstance(order, Load):
                engine, _ = share.load(order.spec)
            elif engine is not None:
                obey(engine, order, inbox)
    share.leave()


def obey(engine: Engine, call: Call, inbox: Inbox) -> None:
    """Call the method; a generator goes from event to event as rank 0's does."""
    events = getattr(engine, call.method)(*call.arguments)
    if isinstance(events, Generator):
        with closing(events):
            for _ in events:
                if inbox.take() is not Step.GO:
                    return


def end_with_parent() -> None:
    """Have Linux kill this process when rank 0 dies: while a library loads, nobody here reads the line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
