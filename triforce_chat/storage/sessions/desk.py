"""Where a chat takes up a session, or begins one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from triforce_chat.chat.conversation import Conversation
from triforce_chat.documents import Document
from triforce_chat.errors import UsageError
from triforce_chat.settings.paths import sessions_file
from triforce_chat.settings.settings import CHANGEABLE
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.database import Unwritable
from triforce_chat.storage.sessions.lease import Lease
from triforce_chat.storage.sessions.names import checked
from triforce_chat.storage.sessions.recorded import Recorded
from triforce_chat.storage.sessions.store import Store
from triforce_chat.storage.sessions.values import Answerer, Record
from triforce_chat.ui import figures
from triforce_chat.ui.commands import Known

if TYPE_CHECKING:
    from triforce_chat.chat.session import Session
    from triforce_chat.settings.options import Options

LASTING = (*CHANGEABLE, "context", "dtype")  # with another dtype the documents would be read again
Say = Callable[[str], None]  # shows one line to the user


class Desk:
    """The session that a chat continues, if any, and the store that the chat is written to."""

    def __init__(self, name: str | None, last: bool, warn: Say) -> None:
        """``name`` is the session to continue, or to begin if there is none; ``last`` continues the last one.

        Where nothing can be written a new chat goes on all the same, and ``warn`` says so. Raises UsageError,
        InUse when another process has the session, and StateError.
        """
        self.warn = warn
        self.record: Record | None = None
        self.talk: Recorded | None = None
        self._lease: Lease | None = None
        self._name = checked(name) if name else None
        self._open = ExitStack()
        try:
            self.store: Store | None = Store(sessions_file())
        except Unwritable as error:
            if name or last:
                raise
            self.store = None
            warn(f"this chat is not kept: {error}")
        else:
            self._open.callback(self.store.close)
            self._take_up(Catalog(self.store), last)

    def _take_up(self, catalog: Catalog, last: bool) -> None:
        if last:
            heading = catalog.last()
        elif self._name and catalog.store.taken(self._name):
            heading = catalog.find(self._name)
        else:
            return
        self._lease = catalog.store.lease(heading.id, heading.name)
        self._open.callback(self._lease.release)
        self.record = catalog.load(heading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.talk:
            self.talk.close()
        self._open.close()

    def options(self, options: Options, given: Collection[str]) -> Options:
        """What the session was made with, but for what was ``given`` on the command line."""
        if self.record is None:
            return options
        kept = {"system": self.record.system, **self.record.settings}
        wanted = {"system", "model", "draft", *LASTING} - set(given)
        if "model" in given:
            wanted.discard("draft")  # it was one for the other model
        return dataclasses.replace(options, **{name: value for name, value in kept.items() if name in wanted})

    def conversation(self, session: Session, documents: Sequence[Document], note: Say) -> Conversation:
        """The chat with everything that was said before, and with ``documents`` behind it. Raises DoesNotFit."""
        talk: Conversation = session
        if self.store is not None:
            opened = (self.record.heading.id, self._lease) if self.record and self._lease else None
            answerer = answerer_of(session)
            self.talk = talk = Recorded(
                session, self.store, answerer, session.format.text, self._name, opened
            )
        if self.record is not None:
            self._restore(session, self.record, note)
        for document in documents:
            if self.record and any(document.pages == each.pages for each in self.record.documents):
                note(f"{document.title} is in the session already")
            else:
                talk.add(document)
        return talk

    def _restore(self, session: Session, record: Record, note: Say) -> None:
        past = record.answered
        anew = session.restore(past, record.waiting)
        models = {each.model for each in past} - {answerer_of(session)().model}
        if anew or models:
            others = ", ".join(sorted({each.model for each in past}))
            how = "its texts were tokenized anew" if anew else "its tokens mean the same and were taken over"
            self.warn(f"{record.heading.name} was made with {others}; {how}")
        used = figures.moment(record.heading.used)
        note(f"session {record.heading.name}: {figures.count(len(past), 'turn')}, last used {used}")
        if record.past and record.past[-1] not in past:
            note(f"its last question has no answer: {record.past[-1].turn.question}")

    def known(self) -> list[Known]:
        """All sessions for the eye. Raises UsageError if this chat is not kept."""
        if self.store is None:
            raise UsageError("this chat is not kept, and no other one can be read")
        here = self.talk.session if self.talk else None
        return [
            Known(heading.name, heading.turns, heading.titles, heading.used, heading.id == here)
            for heading in Catalog(self.store).headings()
        ]


def answerer_of(session: Session) -> Callable[[], Answerer]:
    """Who answers in this session; asked anew each time, because /set changes the settings."""

    def answerer() -> Answerer:
        settings = session.settings
        kept = {name: getattr(settings, name) for name in LASTING}
        model, draft = lasting(settings.model), lasting(settings.draft)
        return Answerer(model, session.vocabulary, {**kept, "model": model, "draft": draft})

    return answerer


def lasting(model: str) -> str:
    """A model's name as it is understood from any folder."""
    from triforce_chat.models.presets import find_preset

    if find_preset(model) is None and Path(model).expanduser().exists():
        return str(Path(model).expanduser().absolute())
    return model
