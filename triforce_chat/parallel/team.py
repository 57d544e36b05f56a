"""Rank 0's lines to the other ranks. They carry its orders, and their end is noticed at once.

While the user thinks, every rank waits for its line, which costs nothing and never times out. When a rank is
gone, the main thread gets a signal whose handler raises ``RankLost`` wherever it is: at the prompt, in a read, in
Python. Where it does not come back, because a GPU waits for the lost rank, the process is left after ``GRACE``.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from subprocess import Popen, TimeoutExpired
from typing import Any

from triforce_chat.errors import RankLost
from triforce_chat.parallel.orders import End, Failed, Order

GRACE = 2.0  # seconds for the main thread to end by itself, and for the others to follow
CURSOR_SHOWN = "\x1b[?25h"


class Team:
    """The ranks beside rank 0. ``links[n]`` leads to rank n+1, ``started`` are those that this process started."""

    def __init__(self, links: Sequence[Connection], started: Sequence[Popen[bytes]] = ()) -> None:
        self.links, self.started = links, started
        self.lost: RankLost | None = None
        self.over = self._leaving = False
        self._restore = terminal_as_it_is()
        self._noticed = threading.Event()
        signal.signal(signal.SIGUSR1, self._interrupt)
        atexit.register(self._leave)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def tell(self, order: Order) -> None:
        """Send an order to every rank. Raises RankLost."""
        if self.over:
            raise self.lost or RankLost("the other ranks were let go after an error")
        data = pickle.dumps(order)
        try:
            for link in self.links:
                link.send_bytes(data)
        except OSError as error:
            raise self.loss() or RankLost(f"a rank cannot be reached: {error}") from error

    def loss(self) -> RankLost | None:
        """What ended a rank; a connection may break a moment before the reason is known."""
        self._noticed.wait(GRACE)
        return self.lost

    def release(self) -> None:
        """Let the other ranks go."""
        if self.over:
            return
        self.over = True
        data = pickle.dumps(End.END)
        for link in self.links:
            try:
                link.send_bytes(data)
            except OSError:
                continue

    def _watch(self) -> None:
        ready = wait(self.links)
        if self.over:
            return
        self.lost = self._told(self.links.index(ready[0]) + 1, ready[0])
        self.release()
        self._noticed.set()
        main = threading.main_thread()
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
        time.sleep(GRACE)
        if not self._leaving:
            self._restore()
            print(f"error: {self.lost}", file=sys.stderr, flush=True)
        self._kill()
        os._exit(self.lost.exit_code)

    def _told(self, rank: int, link: Any) -> RankLost:
        """Why a rank ended, in its own words if it had any."""
        try:
            words = pickle.loads(link.recv_bytes())
        except (EOFError, OSError):
            return RankLost(f"rank {rank} of --tp ended without a word; all ranks have ended")
        assert isinstance(words, Failed)
        lost = RankLost(f"rank {rank}: {words.text}", words.exit_code)
        lost.add_note(words.traceback)
        return lost

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self.lost:
            raise self.lost

    def _leave(self) -> None:
        """The last thing that this process does."""
        self._leaving = True
        self.release()
        end = time.monotonic() + GRACE
        for worker in self.started:
            try:
                worker.wait(max(0.0, end - time.monotonic()))
            except TimeoutExpired:
                break
        self._kill()
        if self.lost:  # what libraries still do at the end would wait for the lost rank
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.lost.exit_code)

    def _kill(self) -> None:
        for worker in self.started:
            worker.kill()
            worker.wait()


def terminal_as_it_is() -> Callable[[], None]:
    """Remember the terminal's state; the returned function brings it back."""
    try:
        import termios

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        return lambda: None

    def restore() -> None:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
        if sys.stderr.isatty():
            print(CURSOR_SHOWN, end="", file=sys.stderr)

    return restore
