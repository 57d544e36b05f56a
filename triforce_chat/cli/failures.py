"""How a command fails: one line on stderr and an exit code; a traceback only for defects or with --debug."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from types import FrameType
from typing import IO

import typer

from triforce_chat.errors import Interrupted, RankLost, TriforceError, reason_of

USUAL_COLUMNS = 80  # of a terminal that does not say its size
SIGNALLED = 128  # a shell's exit code of a process that a signal ended is this plus the signal's number
AGAIN = 0.01  # seconds between two looks whether a signal may be sent again


@contextmanager
def failures(debug: bool) -> Iterator[None]:
    """Turn an error that a user can understand into one line and an exit code. Raises typer.Exit for those."""
    try:
        with ended_by_signals():
            yield
    except typer.Exit:  # a RuntimeError, but none that says what failed
        raise
    except BrokenPipeError:  # the reader of a pipe has closed it
        write_nowhere()
        raise typer.Exit(0) from None
    except (TriforceError, KeyboardInterrupt, MemoryError, RuntimeError, OSError) as error:
        known = _as_known(error)
        if debug or known is None:
            raise
        if not isinstance(known, RankLost) or known.claim_printing():
            print_error(str(known))
        raise typer.Exit(known.exit_code) from None


def write_nowhere() -> None:
    """Discard what is still to be written, so that the end of the process is quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Terminated(SystemExit):
    """A signal asks the process to exit."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALLED + number)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """On a terminal SIGTERM and SIGHUP raise SystemExit, so that what was changed on it is undone.

    Python drops an exception that is raised in a destructor or a weak reference's callback. Where that happens to
    such a signal, to Ctrl-C or to the one that tells of a lost rank, it is sent once more.
    """
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    attached = any(map(_is_terminal, (sys.stdin, sys.stderr)))
    in_main_thread = threading.current_thread() is threading.main_thread()
    usual = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    mine = usual if attached and in_main_thread else []
    for number in mine:
        signal.signal(number, _end)
    report = sys.unraisablehook
    sys.unraisablehook = partial(_repeat_signal, report)
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
    raise Terminated(number)


def _repeat_signal(
    report: Callable[[sys.UnraisableHookArgs], object], dropped: sys.UnraisableHookArgs
) -> None:
    """Send the signal again whose exception was dropped; report every other dropped exception."""
    error = dropped.exc_value
    if isinstance(error, Terminated):
        number = error.number
        signal.signal(number, _end)
    elif isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(error, RankLost) and callable(signal.getsignal(signal.SIGUSR1)):
        number = signal.SIGUSR1
    else:
        report(dropped)
        return
    Thread(target=_send_again, args=(number,), daemon=True).start()


def _send_again(number: int) -> None:
    """Send the main thread a signal as soon as it has left ``_repeat_signal``, where its exception would be dropped."""
    main = threading.main_thread().ident or 0
    while _is_running(_repeat_signal, main):
        time.sleep(AGAIN)
    if hasattr(signal, "pthread_kill"):
        # A blocking call of the main thread returns at once only if the signal is that thread's own.
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)


def _is_running(function: Callable[..., object], thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _as_known(error: BaseException) -> TriforceError | None:
    """The error as a user can understand it; None for a defect of the program."""
    if isinstance(error, TriforceError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, OSError):
        return TriforceError(reason_of(error))
    from triforce_chat.models.failures import is_out_of_memory, out_of_memory_error

    return out_of_memory_error() if is_out_of_memory(error) else None


def print_error(line: str) -> None:
    """Print an error, which a terminal gets wrapped between words and everything else as one line."""
    from triforce_chat.ui.clean import one_line

    text = f"error: {one_line(line)}"
    if _is_terminal(sys.stderr):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_COLUMNS
        text = textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)
