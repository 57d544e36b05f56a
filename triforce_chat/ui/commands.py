"""The slash commands: each ``cmd_*`` method is one, with its docstring as help and ``complete_*`` for completion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import exists, expanduser
from pathlib import Path

from triforce_chat.chat.conversation import Conversation, SavedSession
from triforce_chat.chat.events import Tally
from triforce_chat.documents import Document
from triforce_chat.errors import UsageError
from triforce_chat.settings.umask import write_named
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.clean import clean
from triforce_chat.ui.clipboard import copy_to_clipboard
from triforce_chat.ui.compare import show_comparison
from triforce_chat.ui.document_views import show_hits, show_pages
from triforce_chat.ui.export import as_json, as_markdown, describe_document
from triforce_chat.ui.statistics import show_statistics
from triforce_chat.ui.tables import show_table
from triforce_chat.ui.terminal import Screen

PAGES = re.compile(r"\d+(-\d*)?(,\d+(-\d*)?)*")
USAGE = re.compile(r"Usage: (.*)")
ReadDocument = Callable[[str, str | None], Document]
Choice = tuple[str, str]  # a completion and its meaning
WRITERS: Mapping[str, Callable[[Conversation], str]] = {".md": as_markdown, ".json": as_json}


@dataclass(frozen=True, slots=True)
class Command:
    """One command as /help and the completion show it."""

    name: str
    arguments: str
    help: str
    run: Callable[[str], None]

    @classmethod
    def of(cls, method: Callable[[str], None]) -> Command:
        text = method.__doc__ or ""
        usage = USAGE.search(text)
        name = method.__name__.removeprefix("cmd_")
        return cls(name, usage[1].rstrip(".") if usage else "", text.splitlines()[0], method)


class Commands:
    """The slash commands of a conversation."""

    def __init__(
        self,
        conversation: Conversation,
        read_document: ReadDocument,
        screen: Screen,
        show: Callable[..., None],
        sessions: Callable[[], Sequence[SavedSession]] = tuple,
    ) -> None:
        """``show(events, previous="")`` shows an answer, which may continue a previous text."""
        self.leaving = False
        self.draft: str | None = None  # a question to edit; None: /editor was not called
        self._conversation, self._read_document = conversation, read_document
        self._screen, self._show, self._sessions = screen, show, sessions
        self._saved: set[Path] = set()
        methods = (getattr(self, name) for name in vars(Commands) if name.startswith("cmd_"))
        self.all = {command.name: command for command in map(Command.of, methods)}

    @property
    def last(self) -> Tally | None:
        """The tally of the last answer."""
        turns = self._conversation.turns
        return turns[-1].tally if turns else None

    def run(self, line: str) -> None:
        """Run ``/name arguments``. Raises UsageError for an unknown name."""
        name, _, arguments = line.removeprefix("/").partition(" ")
        command = self.all.get(name)
        if command is None:
            close = difflib.get_close_matches(name, self.all, 1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists the commands"
            raise UsageError(f"there is no command /{clean(name)}; {hint}")
        command.run(arguments.strip())

    def choices(self, name: str) -> Iterable[Choice]:
        """Completions of a command's arguments, except paths."""
        complete: Callable[[], Iterable[Choice]] = getattr(self, f"complete_{name}", lambda: ())
        return complete()

    def cmd_help(self, name: str) -> None:
        """Show the commands, or one of them.

        Usage: [COMMAND]
        """
        wanted = name.removeprefix("/")
        shown = [self.all[wanted]] if wanted in self.all else self.all.values()
        rows = [[f"/{command.name} {command.arguments}".strip(), command.help] for command in shown]
        show_table(("", ""), rows, self._screen)

    def complete_help(self) -> Iterable[Choice]:
        return [(command.name, command.help) for command in self.all.values()]

    def cmd_doc(self, arguments: str) -> None:
        """Add a document to this chat.

        Usage: PATH [PAGES]
        """
        path, pages = _path_and_pages(arguments)
        if not path:
            raise UsageError("/doc needs a path: /doc PATH [PAGES], for instance /doc book.pdf 12-40")
        document = self._read_document(path, pages)
        tokens = self._conversation.add(document)
        self._screen.note(f"added {describe_document(document)}, {formatting.count(tokens, 'token')}")
        self._show(self._conversation.prefill())

    def cmd_pages(self, arguments: str) -> None:
        """List the documents, or show pages as the model sees them.

        Usage: [PAGES]
        """
        if not self._conversation.documents:
            raise UsageError("there is no document; add one with /doc PATH")
        if not arguments:
            return self._screen.note(*map(describe_document, self._conversation.documents))
        return show_pages(self._conversation.documents, arguments, self._screen)

    def cmd_find(self, words: str) -> None:
        """Search the documents.

        Usage: WORDS
        """
        if not words:
            raise UsageError("/find needs words: /find WORDS")
        if not self._conversation.documents:
            raise UsageError("there is no document; add one with /doc PATH")
        show_hits(self._conversation.documents, words, self._screen)

    def cmd_sources(self, _arguments: str) -> None:
        """Show the pages that the last answer came from."""
        sourced = self.last.sourced if self.last else None
        if sourced is None:
            raise UsageError("there are no sources yet: ask something about a document first")
        for line in source_lines.details(sourced):
            self._screen.notes.print(line)

    def cmd_stats(self, _arguments: str) -> None:
        """Show the statistics of the last answer."""
        tally = self.last
        if tally is None:
            raise UsageError("there are no statistics yet: ask something first")
        show_statistics(tally, self._screen)

    def cmd_compare(self, question: str) -> None:
        """Answer a question with and without speculation, side by side.

        Usage: QUESTION
        """
        if not question:
            raise UsageError("/compare needs a question: /compare QUESTION")
        limit = self._conversation.context_limit
        show_comparison(self._conversation.compare(question), self._screen, limit=limit)

    def cmd_system(self, text: str) -> None:
        """Show or change the system text; "" empties it.

        Usage: [TEXT]
        """
        if text:
            self._conversation.set_system("" if text in ('""', "''") else text)
        self._screen.note(self._conversation.system or "the system text is empty")

    def cmd_set(self, arguments: str) -> None:
        """Show the settings, or change one.

        Usage: [NAME VALUE]
        """
        name, value = [*arguments.replace("=", " ", 1).split(None, 1), "", ""][:2]
        options = self._conversation.options()
        if value or (name and name not in options):
            self._conversation.set_option(name, value.strip())
            options = self._conversation.options()
        shown = {name: options[name]} if name in options else options
        self._screen.note(*(f"{name} = {value}" for name, value in shown.items()))

    def complete_set(self) -> Iterable[Choice]:
        return [(name, f"now {value}") for name, value in self._conversation.options().items()]

    def cmd_continue(self, _arguments: str) -> None:
        """Continue an answer that was stopped, or cut at the length limit."""
        turns = self._conversation.turns
        self._show(self._conversation.resume(), turns[-1].answer if turns else "")

    def cmd_copy(self, _arguments: str) -> None:
        """Put the last answer on the clipboard of your terminal."""
        if not self._conversation.turns:
            raise UsageError("there is no answer to copy")
        text = clean(self._conversation.turns[-1].answer).strip()
        copy_to_clipboard(text, self._screen)
        self._screen.note(f"sent {formatting.count(len(text), 'character')} to the terminal's clipboard")

    def cmd_editor(self, text: str) -> None:
        """Write the question in $EDITOR; Ctrl-X Ctrl-E does the same.

        Usage: [TEXT]
        """
        self.draft = text

    def cmd_retry(self, _arguments: str) -> None:
        """Answer the last question again."""
        self._show(self._conversation.retry())

    def cmd_export(self, file: str) -> None:
        """Write the conversation to a file: .md for reading, .json with all measurements.

        Usage: FILE
        """
        path = Path(expanduser(file.strip("\"'")))
        write = WRITERS.get(path.suffix.lower())
        if write is None:
            raise UsageError("/export needs a file that ends in .md or .json: /export FILE")
        if path.exists() and path.resolve() not in self._saved:
            raise UsageError(f"{path} exists; nothing was written, choose another name")
        try:
            write_named(path, write(self._conversation))
        except ValueError:
            raise UsageError(f"{path} cannot be the name of a file; nothing was written") from None
        self._saved.add(path.resolve())
        self._screen.note(f"wrote {formatting.count(len(self._conversation.turns), 'turn')} to {path}")

    def cmd_save(self, file: str) -> None:
        """Write the conversation to a file, as /export does.

        Usage: FILE
        """
        self.cmd_export(file)

    def cmd_sessions(self, _arguments: str) -> None:
        """List the sessions; * is this one."""
        saved = self._sessions()
        if saved:
            show_table(("session", "turns", "used", "documents"), [*map(_row, saved)], self._screen)
        if not any(each.current for each in saved):
            self._screen.note("this chat becomes a session with its first question")

    def cmd_tokens(self, _arguments: str) -> None:
        """Show how much of the context is used."""
        used, limit = self._conversation.context_used, self._conversation.context_limit
        self._screen.note(f"context {formatting.context_usage(used, limit)}, {max(0, limit - used):,} left")

    def cmd_clear(self, _arguments: str) -> None:
        """Start a new session with the same documents."""
        self._conversation.clear()
        self._screen.note("new session; the documents stay")

    def cmd_exit(self, _arguments: str) -> None:
        """Leave; Ctrl-D does the same."""
        self.leaving = True

    def cmd_quit(self, arguments: str) -> None:
        """Leave."""
        self.cmd_exit(arguments)


def _row(saved: SavedSession) -> list[str]:
    used, titles = formatting.local_time(saved.used), ", ".join(saved.titles)
    cells = (f"{saved.name}{' *' * saved.current}", f"{saved.turns:,}", used, titles)
    return [clean(cell) for cell in cells]


def _path_and_pages(arguments: str) -> tuple[str, str | None]:
    """Split the arguments of /doc; a page range counts as such only if the whole is not a file."""
    path, _, last = arguments.rpartition(" ")
    whole = arguments.strip("\"'")
    if path and PAGES.fullmatch(last) and not exists(expanduser(whole)):
        return path.strip(" \"'"), last
    return whole, None
