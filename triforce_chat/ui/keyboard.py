"""The keyboard while the program is busy: nothing is echoed, and typed keys wait for the next prompt."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from triforce_chat.ui.suspend import Suspension, write_past_buffers
from triforce_chat.ui.terminal import Screen

if TYPE_CHECKING:  # an answer without a prompt does not load prompt_toolkit
    from prompt_toolkit.input import Input

QUEUE_SIZE = 1 << 16  # bytes, more than a terminal buffers
PASTES_MARKED, PASTES_BARE = "\x1b[?2004h", "\x1b[?2004l"


@contextmanager
def keys_hidden() -> Iterator[None]:
    """Do not echo keys: a ^C or a key typed ahead would shift the live region."""
    restore = _change(_without_echo)
    try:
        yield
    finally:
        restore()


@contextmanager
def keys_kept(prompt: Input, screen: Screen) -> Iterator[None]:
    """Pass the keys typed meanwhile to ``prompt``: each line, and each paste, is one message."""
    restore = _change(_byte_by_byte)
    _mark(screen, PASTES_MARKED)
    suspension = Suspension(partial(_mark, screen, PASTES_BARE), partial(_mark, screen, PASTES_MARKED))
    try:
        with suspension:
            yield
    finally:
        _mark(screen, PASTES_BARE)
        _hand_over(_waiting(), prompt)
        restore()


def _mark(screen: Screen, code: str) -> None:
    if screen.detail == "live":
        write_past_buffers(screen.out.file, code)


def _change(change: Callable[[list[Any]], None]) -> Callable[[], None]:
    """Change the terminal's attributes; returns a function that restores them."""
    try:
        import termios

        keyboard = sys.stdin.fileno()
        if os.tcgetpgrp(keyboard) != os.getpgrp():  # a background job that touches the terminal is stopped
            return lambda: None
        before = termios.tcgetattr(keyboard)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        return lambda: None
    changed = [*before]
    change(changed)
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    return lambda: termios.tcsetattr(keyboard, termios.TCSANOW, before)


def _without_echo(attributes: list[Any]) -> None:
    import termios

    attributes[3] &= ~termios.ECHO


def _byte_by_byte(attributes: list[Any]) -> None:
    import termios

    attributes[0] &= ~termios.ICRNL  # Enter stays Enter
    attributes[3] &= ~(termios.ECHO | termios.ICANON)


def _waiting() -> bytes:
    """Typed bytes that were not read yet."""
    try:
        keyboard = sys.stdin.fileno()
        if not os.isatty(keyboard) or os.tcgetpgrp(keyboard) != os.getpgrp():
            return b""
        return os.read(keyboard, QUEUE_SIZE) if select.select([keyboard], [], [], 0)[0] else b""
    except (OSError, ValueError, AttributeError):
        return b""


def _hand_over(typed: bytes, prompt: Input) -> None:
    from prompt_toolkit.input.typeahead import store_typeahead
    from prompt_toolkit.input.vt100_parser import Vt100Parser
    from prompt_toolkit.key_binding.key_processor import KeyPress

    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    parser.feed(typed.decode(errors="ignore"))
    parser.flush()
    store_typeahead(prompt, keys)
