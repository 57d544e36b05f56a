"""What commands print: JSON records, lines, notes and warnings; and the question before something is deleted."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from triforce_chat.ui.terminal import Screen

TABLE_WIDTH = 170  # characters that wide tables need
UNLIMITED = 10_000  # columns


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line; without escapes for letters if the output is UTF-8."""
    from triforce_chat.ui.clean import escaped

    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(escaped(json.dumps(value, ensure_ascii=not is_unicode)), flush=True)


def print_record(record: dict[str, Any]) -> None:
    """Print one JSON object that starts with the version of its schema."""
    from triforce_chat.chat.records import SCHEMA

    print_json({"schema": SCHEMA, **record})


def screen_of(options: Options) -> Screen:
    """Standard output and standard error, as detailed as the options and the terminal allow.

    What is no terminal has no width: whatever ``COLUMNS`` says, a program that reads a table gets its cells whole.
    """
    from triforce_chat.ui.terminal import OutputConsole, Screen, is_terminal
    from triforce_chat.ui.theme import THEME

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    quiet = options.quiet or options.json or options.jsonl
    colours: Any = {"color_system": None} if options.plain else {"theme": THEME}
    out, err = (
        OutputConsole(
            stderr=stream is sys.stderr, width=None if is_terminal(stream) else UNLIMITED, **colours
        )
        for stream in (sys.stdout, sys.stderr)
    )
    return Screen.of(out, err, plain=options.plain, quiet=quiet)


def print_line(console: Console, line: str) -> None:
    """Print one line without markup; a terminal gets it wrapped between words, a pipe gets it whole."""
    from rich.text import Text

    from triforce_chat.ui.clean import clean
    from triforce_chat.ui.terminal import print_line as print_text

    print_text(console, Text(clean(line)))


def show_notes(notes: list[str], screen: Screen) -> None:
    """Show what the program chose for the user, unless only the answer is wanted."""
    from rich.text import Text

    from triforce_chat.ui.clean import clean
    from triforce_chat.ui.terminal import print_line as print_text

    for line in notes if screen.detail != "bare" else ():
        print_text(screen.err, Text(clean(line), "dim"))


def show_warning(options: Options, screen: Screen, line: str) -> None:
    """Show what makes the answers doubtful, unless --quiet."""
    if not options.quiet:
        from rich.text import Text

        from triforce_chat.ui.clean import one_line
        from triforce_chat.ui.terminal import print_line as print_text

        print_text(screen.err, Text(one_line(line), "bold"))


def confirm_deletion(question: str) -> None:
    """Ask before something is deleted. Raises UsageError for no, Ctrl-C and Ctrl-D."""
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        pass
    raise UsageError("nothing deleted")
