"""The terminal's clipboard, by the escape code OSC 52, which works over any connection."""

from __future__ import annotations

from base64 import b64encode

from triforce_chat.errors import UsageError
from triforce_chat.ui.terminal import Screen

MAX_BYTES = 74_994  # xterm accepts sequences of 100,000 bytes, and base64 turns three bytes into four


def copy_to_clipboard(text: str, screen: Screen) -> None:
    """Ask the terminal to put ``text`` on its clipboard. Raises UsageError if that cannot work."""
    if not screen.is_terminal or screen.out.is_dumb_terminal:
        raise UsageError(
            "there is no clipboard: standard output is not a terminal that has one; /export writes a file"
        )
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the answer has {len(data):,} bytes and a terminal's clipboard takes {MAX_BYTES:,}; /export writes a file"
        )
    screen.out.file.write(f"\x1b]52;c;{b64encode(data).decode()}\x07")
    screen.out.file.flush()
