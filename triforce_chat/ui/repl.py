"""The chat loop: read a message, answer it, survive errors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.shortcuts import PromptSession
from rich.cells import cell_len
from rich.text import Text

from triforce_chat.chat.conversation import Conversation
from triforce_chat.chat.events import ChatEvent
from triforce_chat.errors import INTERRUPTED, RankLost, TriforceError, UsageError, reason_of
from triforce_chat.ui import formatting
from triforce_chat.ui.answer import show_answer
from triforce_chat.ui.clean import clean, one_line
from triforce_chat.ui.command_table import Next, ReadDocument, Surroundings
from triforce_chat.ui.commands import Commands
from triforce_chat.ui.keyboard import keys_kept
from triforce_chat.ui.notify import LONG, notify
from triforce_chat.ui.paste import Pastes
from triforce_chat.ui.prompt import is_command, message_text, prompt_session
from triforce_chat.ui.terminal import Leave, Screen, print_line

FIRST_HINTS = (
    "Ask about your documents; the pages that an answer came from are listed below it.",
    "/doc FILE adds a document, /find WORDS searches, /help panel explains the figures.",
    "Ctrl-C stops an answer, Alt-Enter starts a new line; chat -c continues the last chat.",
)
HINT = "Ctrl-D exits, Ctrl-C stops an answer, /help shows the commands"
UNREAD = "unread"  # the end of an answer that was stopped while its prompt was read
# What can be done at a prompt about an answer that is not whole, by its end.
REMEDIES = {
    **dict.fromkeys(("length", "repetition", "interrupted"), "/continue resumes the answer"),
    UNREAD: "what was read is kept: your next question reads only the rest; /drop removes a document",
}


@dataclass(frozen=True, slots=True)
class Labels:
    """Names that the panel and the toolbar show."""

    model: str
    stack: str


@dataclass(frozen=True, slots=True)
class Preferences:
    """How a user likes to chat: with vi's keys, and with notifications at the end of something long."""

    vi: bool = False
    notify: str = "off"


class Repl:
    """A chat on a terminal (``run``) or over the lines of a file (``run_lines``)."""

    def __init__(
        self,
        conversation: Conversation,
        read_document: ReadDocument,
        screen: Screen,
        labels: Callable[[], Labels],
        history: Path | None = None,
        around: Surroundings | None = None,
        preferences: Preferences | None = None,
    ) -> None:
        """``labels``: called each time, because /set may change the stack. ``history``: None keeps no file."""
        self.exit_code = 0  # of the last error
        self._remedies: Mapping[str, str] = formatting.UNATTENDED_REMEDIES
        self._conversation, self._screen, self._labels = conversation, screen, labels
        self._commands = Commands(conversation, read_document, screen, self._show, around or Surroundings())
        self._is_first = history is not None and not history.exists()
        self._history, self._preferences, self._pastes = history, preferences or Preferences(), Pastes()

    @property
    def next(self) -> Next | None:
        """With what the chat goes on; None: the user left."""
        return self._commands.next

    def run(self, keyboard: Input | None = None, output: Output | None = None) -> int:
        """Chat until Ctrl-D, /exit or a double Ctrl-C; returns the exit code. None: the process's own terminal."""
        self._remedies = REMEDIES
        session = self._prompt_session(keyboard, output)
        try:
            with self._keys_kept(session):
                self._welcome()
            return self._loop(session)
        except Leave:
            return INTERRUPTED

    def run_lines(self, lines: Iterable[str]) -> int:
        """Take each line as one message; returns the exit code of the last error, or 0."""
        try:
            for line in lines:
                self._safely(partial(self._handle_unattended, line))
                if self._commands.leaving or self.exit_code == INTERRUPTED:
                    break
        except KeyboardInterrupt:
            return INTERRUPTED
        return self.exit_code

    def handle(self, text: str) -> None:
        """Run a command or answer a question. Raises TriforceError."""
        text = message_text(text)
        if is_command(text, self._commands.all):
            self._commands.run(text)
        elif text:
            question = text[1:] if text.startswith("//") else text
            self._show(self._conversation.ask(question))

    def _handle_unattended(self, line: str) -> None:
        self.handle(line)
        if self._commands.draft is not None:
            self._commands.draft = None
            raise UsageError("/editor needs a keyboard: standard input is not a terminal")
        if self._commands.prompted:
            self._commands.prompted = ""
            raise UsageError("/edit needs a keyboard or a question: /edit QUESTION")

    def _loop(self, session: PromptSession[str]) -> int:
        while not self._commands.leaving:
            try:
                text = self._read(session)
                if text is None:
                    break
                with self._keys_kept(session):
                    self._safely(partial(self.handle, self._pastes.unfold(text)))
            except Leave:
                raise
            except KeyboardInterrupt:  # at the prompt, or before the message is handled
                self._remark(HINT)
        return 0

    def _prompt_session(self, keyboard: Input | None, output: Output | None) -> PromptSession[str]:
        toolbar = None if self._screen.detail == "plain" else self._toolbar
        prompt = partial(
            prompt_session,
            self._commands,
            self._history,
            toolbar,
            keyboard,
            pastes=self._pastes,
            vi=self._preferences.vi,
        )
        if self._screen.out.is_dumb_terminal and output is None:
            with create_app_session(output=PlainTextOutput(sys.stdout)):
                return prompt()
        # Standard output may be a file; the prompt belongs on the terminal.
        return prompt(output=output or create_output(always_prefer_tty=True))

    def _read(self, session: PromptSession[str]) -> str | None:
        """Read a message from the prompt; after /editor the prompt opens the editor at once. None: the user leaves."""

        def open_editor() -> None:
            session.default_buffer.open_in_editor()

        draft, self._commands.draft = self._commands.draft, None
        prompted, self._commands.prompted = self._commands.prompted, ""
        try:
            if draft is None:
                return session.prompt(default=prompted)
            return session.prompt(default=draft, pre_run=open_editor)
        except EOFError:
            return None

    def _keys_kept(self, session: PromptSession[str]) -> AbstractContextManager[None]:
        return keys_kept(session.input, self._screen)

    def _safely(self, work: Callable[[], None]) -> None:
        """Do ``work`` and show its errors, so that the chat goes on."""
        try:
            work()
        except (Leave, RankLost):
            raise
        except BrokenPipeError:  # nobody reads the output any more
            raise
        except KeyboardInterrupt:
            self._fail("stopped", INTERRUPTED)
        except TriforceError as error:
            self._fail(str(error), error.exit_code)
        except OSError as error:
            self._fail(reason_of(error), 1)

    def _fail(self, text: str, exit_code: int) -> None:
        self.exit_code = exit_code
        print_line(self._screen.err, Text.assemble(("error: ", "bold red"), one_line(text)))

    def _remark(self, text: str) -> None:
        print_line(self._screen.err, Text(clean(text), "dim"))

    def _show(self, events: Iterator[ChatEvent], previous: str = "") -> None:
        began = time.monotonic()
        tally = show_answer(
            events,
            self._screen,
            title=self._labels().stack,
            limit=self._conversation.context_limit,
            most=int(self._conversation.options()["max-tokens"]),
            previous=previous,
        )
        self._commands.remember_conditions()
        reason = tally.finished.reason if tally.finished else "stop"
        if reason == "interrupted":
            self.exit_code = INTERRUPTED
        remedy = self._remedies.get(UNREAD if reason == "interrupted" and tally.unread else reason)
        if remedy and not self._screen.quiet:
            self._remark(remedy)
        if self._screen.detail == "live":
            self._screen.out.print()
        if time.monotonic() - began >= LONG:
            notify(self._preferences.notify, "answered" if tally.finished else "read", self._screen)

    def _welcome(self) -> None:
        labels = self._labels()
        hint = "/help shows the commands, Ctrl-D exits"
        self._remark(formatting.SEPARATOR.join(filter(None, [labels.model, labels.stack, hint])))
        for line in FIRST_HINTS if self._is_first and self._screen.detail != "bare" else ():
            self._remark(line)
        if self._conversation.documents:
            self._safely(lambda: self._show(self._conversation.prefill()))

    def _toolbar(self) -> str:
        conversation = self._conversation
        documents = ", ".join(clean(document.title) for document in conversation.documents) or "no document"
        last, width = self._commands.last, self._screen.out.width - 2
        pace = f"{last.ms_per_token:.1f} ms/token" if last and last.ms_per_token else ""
        pieces = filter(None, [*self._model_and_context(width), pace, documents])
        return " " + formatting.fit_line(pieces, width)

    def _model_and_context(self, width: int) -> tuple[str, str]:
        """The model and the used context in the longest words that fit into ``width`` columns."""
        used, limit = self._conversation.context_used, self._conversation.context_limit
        model, context = self._labels().model, f"context {formatting.context_usage(used, limit)}"
        name = model.partition(",")[0]
        short = f"context {formatting.percent(used / limit)}" if limit else context
        forms = [(model, context), (name, context), (name, short)]
        return next((form for form in forms if cell_len(formatting.SEPARATOR.join(form)) <= width), forms[-1])
