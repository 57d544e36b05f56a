"""Opening a session for a chat: continue a stored one or begin a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from triforce_chat.chat.conversation import Conversation, SavedSession
from triforce_chat.errors import UsageError
from triforce_chat.settings.layers import typed_value
from triforce_chat.settings.paths import sessions_file
from triforce_chat.settings.settings import CHANGEABLE, SPECIFICATIONS
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.database import Unwritable
from triforce_chat.storage.sessions.lease import Lease
from triforce_chat.storage.sessions.names import check_name
from triforce_chat.storage.sessions.persistent_conversation import PersistentConversation
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.values import ModelInfo, SessionRecord

if TYPE_CHECKING:
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.settings.options import Options

SAVED_SETTINGS = (
    *CHANGEABLE,
    "context",
    "endless",
    "keep",
    "dtype",
    "kv",
)  # with other dtypes the documents would be read again


@dataclass(frozen=True, slots=True)
class Restored:
    """A continued session, as it was restored."""

    name: str
    turns: int
    used: float  # seconds since the epoch
    other_models: tuple[
        str, ...
    ]  # the models of its answers, if the present model or vocabulary is another one
    retokenized: bool  # the stored token ids are of another vocabulary
    unanswered: str | None  # the last question, if it has no answer


class SessionOpener:
    """The session that a chat continues, if any, and the store that the chat is written to."""

    def __init__(self, name: str | None, last: bool, warn: Callable[[str], None]) -> None:
        """``name``: the session to continue, or to begin if there is none; ``last``: continue the last one.

        A new chat continues even if nothing can be written, and ``warn`` says so. Raises UsageError, InUse if
        another process has the session open, and StateError.
        """
        self.record: SessionRecord | None = None
        self._conversation: PersistentConversation | None = None
        self._lease: Lease | None = None
        self._name, self._warn = check_name(name) if name else None, warn
        self._open = ExitStack()
        try:
            self.store: SessionStore | None = SessionStore(sessions_file())
        except Unwritable as error:
            if name or last:
                raise
            self.store = None
            warn(f"this chat is not saved: {error}")
        else:
            self._open.callback(self.store.close)
            self._load(Catalog(self.store), last)

    def _load(self, catalog: Catalog, last: bool) -> None:
        if last:
            summary = catalog.last()
        elif self._name and catalog.store.has_name(self._name):
            summary = catalog.find(self._name)
        else:
            return
        self._lease = catalog.store.lease(summary.id, summary.name)
        self._open.callback(self._lease.release)
        self.record = catalog.load(summary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._conversation:
            self._conversation.close()
        self._open.close()

    def options(self, options: Options, given: Collection[str]) -> Options:
        """The session's saved options; those ``given`` on the command line take precedence."""
        if self.record is None:
            return options
        saved = {"system": self.record.system, **self._saved_settings(self.record)}
        wanted = {"system", "model", "draft", *SAVED_SETTINGS} - set(given)
        if "model" in given:
            wanted.discard("draft")  # it was one for the other model
        return dataclasses.replace(
            options, **{name: value for name, value in saved.items() if name in wanted}
        )

    def _saved_settings(self, record: SessionRecord) -> dict[str, Any]:
        """The session's settings, without those whose values are damaged; a warning names these."""
        kept, damaged = {}, []
        for spec in SPECIFICATIONS:
            if spec.name in record.settings:
                value = record.settings[spec.name]
                try:
                    kept[spec.name] = value if value is None and spec.optional else typed_value(spec, value)
                except UsageError:
                    damaged.append(spec.key)
        if damaged:
            self._warn(f"session '{record.summary.name}': damaged settings are ignored: {', '.join(damaged)}")
        return kept

    def conversation(self, session: ChatSession) -> Conversation:
        """``session``, written to the store if there is one."""
        if self.store is None:
            return session
        opened = (self.record.summary.id, self._lease) if self.record and self._lease else None
        self._conversation = PersistentConversation(
            session, self.store, model_info_of(session), session.question_ids, self._name, opened
        )
        return self._conversation

    def restore(self, session: ChatSession) -> Restored | None:
        """Bring back the stored turns; None for a new session. Raises DoesNotFit."""
        record = self.record
        if record is None:
            return None
        answered = record.answered
        retokenized = bool(session.restore(answered, record.pending))
        models = {portable_name(each.model) for each in answered}
        differs = retokenized or models - {model_info_of(session)().model}
        return Restored(
            name=record.summary.name,
            turns=len(answered),
            used=record.summary.used,
            other_models=tuple(sorted(models)) if differs else (),
            retokenized=retokenized,
            unanswered=record.unanswered,
        )

    def has(self, document: Document) -> bool:
        """True if the continued session already holds these pages."""
        stored: Sequence[Document] = self.record.documents if self.record else ()
        return any(document.pages == each.pages for each in stored)

    @property
    def begun(self) -> str | None:
        """The name that was given to a new session; None for one that is continued, or that names itself."""
        return self._name if self.store is not None and self.record is None else None

    @property
    def current(self) -> str | None:
        """The name of the session that is being written; None before its first question."""
        current = next((each for each in self.saved_sessions() if each.current), None) if self.store else None
        return current.name if current else None

    def require_free(self, name: str) -> None:
        """Raises UsageError for a name that no session may have, and for the session of this chat."""
        if check_name(name) == self.current:
            raise UsageError(f"this chat is already the session {name}")

    def saved_sessions(self) -> list[SavedSession]:
        """All sessions, the last used first. Raises UsageError if this chat is not saved."""
        if self.store is None:
            raise UsageError("this chat is not saved, so the other sessions cannot be read either")
        current = self._conversation.session if self._conversation else None
        return [
            SavedSession(summary.name, summary.turns, summary.titles, summary.used, summary.id == current)
            for summary in Catalog(self.store).summaries()
        ]


def model_info_of(session: ChatSession) -> Callable[[], ModelInfo]:
    """A function that returns the session's model and present settings, which /set may change."""

    def model_info() -> ModelInfo:
        settings = session.settings
        saved = {name: getattr(settings, name) for name in SAVED_SETTINGS}
        model, draft = portable_name(settings.model), portable_name(settings.draft)
        return ModelInfo(model, session.vocabulary, {**saved, "model": model, "draft": draft})

    return model_info


def portable_name(model: str) -> str:
    """A model's name that is valid in any working directory: paths become absolute, aliases names."""
    from triforce_chat.models.presets import find_preset

    preset = find_preset(model)
    if preset is not None:
        return preset.name if model in preset.aliases else model
    return str(Path(model).expanduser().absolute()) if Path(model).expanduser().exists() else model
