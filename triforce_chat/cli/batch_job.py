"""What a worker of a batch does first, in whichever process: it loads the model and makes an answerer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from triforce_chat.cli.ask import planned, run_info_of
from triforce_chat.cli.engines import open_session
from triforce_chat.cli.output import show_warning
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.batch.lines import Answerer
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.ui.terminal import Screen


@dataclass(frozen=True, slots=True)
class BatchJob:
    """Everything that a worker has to know; plain values that can be pickled."""

    options: Options
    automatic: bool  # the model was chosen for this machine, not named
    requests: Path | None = None  # None: questions about books
    documents: tuple[str, ...] = ()  # that all requests are about

    def __call__(self, screen: Screen) -> tuple[Answerer, float]:
        """Load in a process of its own: (answerer, seconds of loading the model)."""
        return self.load(read_all(list(self.documents), self.options, screen), screen)

    def load(self, documents: list[Document], screen: Screen) -> tuple[Answerer, float]:
        """Load the model behind documents that were read."""
        session, seconds = open_session(documents, self.options, screen)
        if self.requests is None:
            return self._about_books(session, seconds, screen), seconds
        from triforce_chat.batch.requests import RequestAnswerer
        from triforce_chat.serve.adapter import SessionAdapter

        return RequestAnswerer(self.requests, SessionAdapter(session), session.loaded.name), seconds

    def _about_books(self, session: ChatSession, load_s: float, screen: Screen) -> Answerer:
        from triforce_chat.batch.books import BookAnswerer
        from triforce_chat.chat.session import ChatSession

        options = self.options

        def read(path: str) -> Document:
            document = read_one(path, options, options.pages, several=True)
            if document.warning:
                show_warning(options, screen, f"{document.title}: {document.warning}")
            return document

        def begin() -> ChatSession:
            return ChatSession(session.engine, session.loaded, options.settings, options.system)

        run_info = run_info_of(options, self.automatic, session, load_s)
        return BookAnswerer(begin, read, partial(planned, run_info))
