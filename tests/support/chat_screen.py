"""A chat over scripted answers whose screen output is captured."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from support.consoles import written
from support.fakes import ScriptedConversation
from triforce_chat.documents import Document, Heading, Page
from triforce_chat.documents.reader import EmptyFile
from triforce_chat.errors import DocumentError
from triforce_chat.ui.repl import Labels, Repl
from triforce_chat.ui.terminal import Detail, Screen

HEADINGS = (Heading("1 Night", 1, 1, 0), Heading("2 Day", 1, 3, 0))
PAGES = (Page(1, "It was night."), Page(2, " "), Page(3, "It was \x1b[1mday."), Page(4, ""), Page(5, "End."))


class Chat:
    """A chat over lines; ``ask`` returns what stdout and stderr received."""

    def __init__(self, *answers: str | Exception, detail: Detail = "bare") -> None:
        self.conversation = ScriptedConversation(*answers)
        self.read: list[tuple[str, str | None]] = []
        self.out, self.err = (Console(file=io.StringIO(), width=100) for _ in range(2))
        labels = Labels("model", "stack")
        self.repl = Repl(
            self.conversation, self._document, Screen(self.out, self.err, detail), lambda: labels
        )

    def _document(self, path: str, pages: str | None) -> Document:
        self.read.append((path, pages))
        if path == "missing.pdf":
            raise DocumentError("missing.pdf cannot be read")
        if path.endswith("empty.txt"):
            raise EmptyFile(f"{path}: empty")
        return Document(Path(path).name, path, PAGES, headings=HEADINGS)

    def ask(self, *lines: str) -> tuple[str, str]:
        self.code = self.repl.run_lines(lines)
        return self._drain(self.out), self._drain(self.err)

    def _drain(self, console: Console) -> str:
        text = written(console)
        console.file = io.StringIO()
        return text
