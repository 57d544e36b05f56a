"""The input line: keys, history, completion, and the rules for what is one message."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document as Line
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.shortcuts import CompleteStyle, PromptSession
from prompt_toolkit.styles import Style

from triforce_chat.ui.commands import Commands
from triforce_chat.ui.paste import Pastes, UnfoldedFileHistory, UnfoldedHistory

FENCE = '"""'
PATH_COMMANDS = {"doc", "export", "save"}
STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "prompt": "bold"})


class SlashCompleter(Completer):
    """Completes commands, shown with their help, and their arguments."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Line, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return ()
        name, space, argument = typed[1:].partition(" ")
        if not space:
            return _matching(name, [(c.name, c.help) for c in self._commands.all.values()])
        if name in PATH_COMMANDS:
            return self._paths.get_completions(Line(argument), complete_event)
        return _matching(argument, self._commands.choices(name, argument))


def _matching(typed: str, choices: Iterable[tuple[str, str]]) -> list[Completion]:
    start = -len(typed)
    return [Completion(text, start, display_meta=meta) for text, meta in choices if text.startswith(typed)]


def block_is_open(text: str) -> bool:
    """True for a message that begins with three quotation marks and does not end with them yet."""
    text = text.strip()
    return text.startswith(FENCE) and not (text.endswith(FENCE) and len(text) >= 2 * len(FENCE))


def message_text(text: str) -> str:
    """The typed text without the quotation marks of a block."""
    text = text.strip()
    if text.startswith(FENCE) and not block_is_open(text):
        text = text.removeprefix(FENCE).removesuffix(FENCE)
    return text.strip()


def is_command(text: str, names: Container[str]) -> bool:
    """True for ``/name``; False for ``//text`` and for a question that begins with an existing path."""
    word = text.split(maxsplit=1)[0] if text else ""
    if not word.startswith("/") or word.startswith("//"):
        return False
    return word[1:] in names or not os.path.exists(word)


def prompt_session(
    commands: Commands,
    history: Path | None,
    toolbar: AnyFormattedText,
    keyboard: Input | None = None,
    output: Output | None = None,
    pastes: Pastes | None = None,
    vi: bool = False,
) -> PromptSession[str]:
    """A prompt: Enter submits, Alt-Enter adds a line, a paste is one message, Ctrl-X Ctrl-E opens the editor.

    ``pastes`` folds long pastes. Without a ``toolbar`` only the line itself is drawn, and completions are listed below
    it.
    """
    pastes = pastes or Pastes()
    return PromptSession(
        [("class:prompt", "> ")],
        multiline=True,
        prompt_continuation="  ",
        key_bindings=_keys(pastes),
        history=_history(history, pastes),
        vi_mode=vi,
        completer=SlashCompleter(commands),
        complete_while_typing=False,
        complete_style=CompleteStyle.COLUMN if toolbar else CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=8 if toolbar else 0,
        bottom_toolbar=toolbar,
        style=STYLE if toolbar else None,
        color_depth=None if toolbar else ColorDepth.DEPTH_1_BIT,
        enable_open_in_editor=True,
        enable_suspend=True,
        tempfile_suffix=".md",
        input=keyboard,
        output=output,
    )


def _keys(pastes: Pastes) -> KeyBindings:
    keys = KeyBindings()

    @keys.add(Keys.BracketedPaste)
    def paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.fold(event.data))

    @keys.add("enter")
    def submit(event: KeyPressEvent) -> None:
        _enter(event.current_buffer)

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _enter(buffer: Buffer) -> None:
    if buffer.complete_state and buffer.complete_state.current_completion:
        buffer.complete_state = None  # Enter accepts the highlighted completion
    elif block_is_open(buffer.text):
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def _history(path: Path | None, pastes: Pastes) -> History:
    """Typed messages in a file for the owner only; in memory if there is no path or it cannot be written."""
    if path is None:
        return UnfoldedHistory(pastes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return UnfoldedHistory(pastes)
    return UnfoldedFileHistory(str(path), pastes)
