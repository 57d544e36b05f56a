"""Rank 0's connections to the other ranks. They carry its commands and reveal at once when a rank ends.

While the user thinks, every rank waits on its connection, which costs nothing and never times out. When a rank is
lost, the main thread receives a signal whose handler raises ``RankLost`` wherever it is: at the prompt, in a read, in
Python. If the main thread does not respond, because its GPU waits for the lost rank, the process exits after
``GRACE`` seconds.
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
from triforce_chat.parallel.commands import Command, Failure, Shutdown

GRACE = 2.0  # seconds for the main thread to exit by itself, and for the other ranks to follow
KNOWN_WITHIN = 10.0  # seconds from a broken connection until its cause is known, on a busy machine
SHOW_CURSOR = "\x1b[?25h"


class Workers:
    """The ranks other than 0.

    ``connections[n]`` leads to rank n+1; ``processes`` are the ranks that this process started, none with torchrun.
    """

    def __init__(self, connections: Sequence[Connection], processes: Sequence[Popen[bytes]] = ()) -> None:
        self.connections, self.processes = connections, processes
        self.lost: RankLost | None = None
        self.closed = self._exiting = self._loss_taken = False
        self._restore_terminal = terminal_restorer()
        self._loss_known = threading.Event()
        signal.signal(signal.SIGUSR1, self._raise_loss)
        atexit.register(self._exit)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def send(self, command: Command) -> None:
        """Send a command to every rank. Raises RankLost."""
        if self.closed:
            raise self.lost or RankLost("the other ranks were shut down after an error")
        data = pickle.dumps(command)
        try:
            for connection in self.connections:
                connection.send_bytes(data)
        except OSError as error:
            raise self.loss() or RankLost(f"a rank cannot be reached: {error}") from error

    def loss(self) -> RankLost | None:
        """The error that ended a rank, for the main thread to raise, which is then not interrupted by it any more.

        Waits for it: a connection may break before the cause is known.
        """
        self._loss_known.wait(KNOWN_WITHIN)
        self._loss_taken = self.lost is not None
        return self.lost

    def shut_down(self) -> None:
        """Tell the other ranks to exit."""
        if self.closed:
            return
        self.closed = True
        data = pickle.dumps(Shutdown())
        for connection in self.connections:
            try:
                connection.send_bytes(data)
            except OSError:
                continue

    def _watch(self) -> None:
        ready = wait(self.connections)
        if self.closed:
            self._loss_known.set()  # there is none
            return
        self.lost = self._cause(self.connections.index(ready[0]) + 1, ready[0])
        self.shut_down()
        self._loss_known.set()
        main = threading.main_thread()
        signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
        time.sleep(GRACE)
        if self._exiting:
            time.sleep(GRACE)  # the main thread writes what is still to be written
        elif self.lost.claim_printing():
            self._restore_terminal()
            print(f"error: {self.lost}", file=sys.stderr, flush=True)
        self._kill()
        os._exit(self.lost.exit_code)

    def _cause(self, rank: int, connection: Any) -> RankLost:
        """Why a rank ended, from its own report if it sent one."""
        try:
            failure = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return RankLost(f"rank {rank} of --tp ended without an error message; all ranks have ended")
        assert isinstance(failure, Failure)
        lost = RankLost(f"rank {rank}: {failure.message}", failure.exit_code)
        lost.add_note(failure.traceback)
        return lost

    def _raise_loss(self, _number: int, _frame: object) -> None:
        if self.lost and not self._loss_taken:
            raise self.lost

    def _exit(self) -> None:
        """Shut down the ranks when this process exits."""
        self._exiting = True
        self.shut_down()
        end = time.monotonic() + GRACE
        for process in self.processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except TimeoutExpired:
                break
        self._kill()
        if self.lost:  # exit handlers of libraries would wait for the lost rank
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.lost.exit_code)

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def terminal_restorer() -> Callable[[], None]:
    """Remember the terminal's state; the returned function restores it."""
    try:
        import termios

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        return lambda: None

    def restore() -> None:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
        if sys.stderr.isatty():
            print(SHOW_CURSOR, end="", file=sys.stderr)

    return restore
