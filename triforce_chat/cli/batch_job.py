"""What a worker of a batch does first, in whichever process: it loads the model and makes an answerer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from triforce_chat.cli.engines import open_session
from triforce_chat.cli.output import show_warning
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.cli.run_info import planned, run_info_of
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.batch.fingerprint import Maker
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
    parallel: int = 1  # questions about a book that are answered at once

    def __call__(self, screen: Screen) -> tuple[Answerer, float]:
        """Load in a process of its own: (answerer, seconds of loading the model)."""
        return self.load(read_all(list(self.documents), self.options, screen), screen)

    def load(self, documents: list[Document], screen: Screen) -> tuple[Answerer, float]:
        """Load the model after the documents were read."""
        from triforce_chat.batch.heap import keep_few_shapes

        keep_few_shapes()
        session, seconds = open_session(documents, self.options, screen)
        make = self._about_books if self.requests is None else self._about_requests
        return make(session, seconds, screen), seconds

    def maker(self) -> Maker:
        """What the answers are made of, once the model is chosen."""
        from triforce_chat.batch.fingerprint import Maker

        return Maker.of(self.options, self.documents)

    def _about_books(self, session: ChatSession, load_s: float, screen: Screen) -> Answerer:
        from triforce_chat.batch.books import BookAnswerer

        run_info = run_info_of(self.options, self.automatic, session, load_s)
        begin, read = partial(self._begin, session), partial(self._read, screen)
        return BookAnswerer(begin, read, partial(planned, run_info), self.maker(), self.parallel)

    def _about_requests(self, session: ChatSession, load_s: float, screen: Screen) -> Answerer:  # noqa: ARG002
        from triforce_chat.batch.requests import RequestAnswerer
        from triforce_chat.serve.adapter import SessionAdapter

        assert self.requests is not None
        shared = session.documents

        def begin(paths: Sequence[str]) -> SessionAdapter:
            opened = self._begin(session)
            for document in (*shared, *(self._read(screen, path) for path in paths)):
                opened.add(document)
            return SessionAdapter(opened)

        return RequestAnswerer(self.requests, begin, session.loaded.name, self.maker())

    def _begin(self, session: ChatSession) -> ChatSession:
        """A conversation without documents, with the same engine."""
        from triforce_chat.chat.session import ChatSession

        return ChatSession(session.engine, session.loaded, self.options.settings, self.options.system_text)

    def _read(self, screen: Screen, path: str) -> Document:
        from triforce_chat.batch.fingerprint import require_file

        require_file(path)
        document = read_one(path, self.options, self.options.pages, several=True)
        if document.warning:
            show_warning(self.options, screen, f"{document.title}: {document.warning}")
        return document
