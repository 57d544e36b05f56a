"""What all slash commands share: how they are found, run and completed, and what they know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triforce_chat.chat.conversation import Conversation, SavedSession
from triforce_chat.chat.events import Tally
from triforce_chat.documents import Document
from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import CHANGEABLE
from triforce_chat.suggestions import nearest
from triforce_chat.ui.clean import clean
from triforce_chat.ui.export import as_json, as_markdown
from triforce_chat.ui.terminal import Screen

SHOWN_QUESTION = 60  # characters
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


@dataclass(frozen=True, slots=True)
class Next:
    """With what the chat goes on after this conversation."""

    model: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the commands know of the program around a conversation.

    ``check``: raises UsageError or ModelError if a chat cannot go on with something else.
    """

    sessions: Callable[[], Sequence[SavedSession]] = tuple
    models: Callable[[], Sequence[str]] = tuple
    model: Callable[[], str] = str
    check: Callable[[Next], None] = lambda _next: None


class CommandTable:
    """A table of commands: each ``cmd_*`` method is one, with its docstring as help."""

    def __init__(
        self,
        conversation: Conversation,
        read_document: ReadDocument,
        screen: Screen,
        show: Callable[..., None],
        around: Surroundings,
    ) -> None:
        """``show(events, previous="")`` shows an answer, which may continue a previous text."""
        self.leaving = False
        self.draft: str | None = None  # a question to edit; None: /editor was not called
        self.prompted = ""  # what the next prompt begins with
        self.answered_with: tuple[object, ...] = ()  # the settings and documents of the last answer
        self._conversation, self._read_document = conversation, read_document
        self._screen, self._show = screen, show
        self._sessions, self._models, self._model = around.sessions, around.models, around.model
        self._check = around.check
        self.next: Next | None = None  # None: the program ends
        self._saved: set[Path] = set()
        self.all = {command.name: command for command in map(Command.of, self._methods())}

    def _methods(self) -> Iterator[Callable[[str], None]]:
        """The methods of the commands, in the order in which /help lists them."""
        for each in type(self).__mro__:
            yield from (getattr(self, name) for name in vars(each) if name.startswith("cmd_"))

    @property
    def last(self) -> Tally | None:
        """The tally of the last answer."""
        turns = self._conversation.turns
        return turns[-1].tally if turns else None

    def run(self, line: str) -> None:
        """Run ``/name arguments``. Raises UsageError for an unknown name."""
        name, _, arguments = line.removeprefix("/").partition(" ")
        self.named(name).run(arguments.strip())

    def named(self, name: str) -> Command:
        """The command with this name. Raises UsageError, which offers a similar one."""
        if name not in self.all:
            found = nearest(name, self.all)
            hint = f"did you mean /{found[0]}?" if found else "/help lists the commands"
            raise UsageError(f"there is no command /{clean(name)}; {hint}")
        return self.all[name]

    def choices(self, name: str, typed: str = "") -> Iterable[Choice]:
        """Completions of a command's arguments, except paths; ``typed`` is what there is of them."""
        if name == "set" and " " in typed:
            return self._values_of(typed.partition(" ")[0])
        complete: Callable[[], Iterable[Choice]] = getattr(self, f"complete_{name}", lambda: ())
        return complete()

    def _values_of(self, option: str) -> Iterable[Choice]:
        spec = CHANGEABLE.get(option.replace("-", "_"))
        values = spec.details.choices if spec else ()
        return [(f"{option} {value}", "") for value in values]
