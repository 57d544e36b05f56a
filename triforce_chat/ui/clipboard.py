"""The clipboard of the terminal, over any connection: OSC 52."""

from __future__ import annotations

from base64 import b64encode

from triforce_chat.errors import UsageError
from triforce_chat.ui.terminal import Screen

MOST = 74_994  # bytes: xterm takes a sequence of 100,000, and base64 makes four of three


def copy(text: str, screen: Screen) -> None:
    """Ask the terminal to put ``text`` on its clipboard; raises ``UsageError`` where that cannot work."""
    if not screen.is_terminal or screen.out.is_dumb_terminal:
        raise UsageError(
            "there is no clipboard: standard output is no terminal that has one; /export writes a file"
        )
    data = text.encode("utf-8", "replace")
    if len(data) > MOST:
        raise UsageError(
            f"the answer has {len(data):,} bytes and a terminal's clipboard takes {MOST:,}; /export writes a file"
        )
    screen.out.file.write(f"\x1b]52;c;{b64encode(data).decode()}\x07")
    screen.out.file.flush()
