"""Telling a user who looks elsewhere that something long has ended, by the terminal's bell or a notification."""

from __future__ import annotations

from triforce_chat.ui.clean import one_line
from triforce_chat.ui.terminal import Screen

LONG = 10.0  # seconds; after a shorter wait the user is still there


def notify(how: str, text: str, screen: Screen) -> None:
    """Ring or show ``text`` as ``how`` says: off, bell, osc9 (iTerm2, kitty) or osc777 (VTE, foot)."""
    shown = one_line(text).replace(";", ",")
    codes = {"bell": "\a", "osc9": f"\x1b]9;{shown}\a", "osc777": f"\x1b]777;notify;triforce-chat;{shown}\a"}
    if how in codes and screen.is_terminal and not screen.out.is_dumb_terminal:
        screen.out.file.write(codes[how])
        screen.out.file.flush()
