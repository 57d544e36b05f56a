"""Many books and questions: every book is read once, and each question is answered from its end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.batch.lines import Answered, Each, Line, error_object
from triforce_chat.chat.events import Tally
from triforce_chat.chat.records import SCHEMA, RunInfo, answer_object
from triforce_chat.documents import Document
from triforce_chat.documents.encoding import decode
from triforce_chat.errors import DocumentError, UsageError

if TYPE_CHECKING:  # lines are found before torch is loaded
    from triforce_chat.chat.session import ChatSession

KEY, HEAD = "custom_id", b'{"schema":'
ID_LENGTH = 24  # hexadecimal digits


@dataclass(frozen=True, slots=True)
class BookLine:
    """One question about one book."""

    file: str
    question: str

    @property
    def id(self) -> str:
        """The same in every run that names the file and asks the question in the same words."""
        named = os.fsencode(self.file) + b"\0" + self.question.encode("utf-8", "surrogatepass")
        return hashlib.sha256(named).hexdigest()[:ID_LENGTH]

    @property
    def name(self) -> str:
        return self.file


def book_lines(files: Sequence[str], questions: Sequence[str]) -> list[BookLine]:
    """All questions about the first file, then about the next one."""
    return [BookLine(file, question) for file in files for question in questions]


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank. Raises UsageError if there are none, or if it is no text."""
    try:
        lines = [line.strip() for line in decode(path.read_bytes()).text.split("\n")]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except DocumentError:
        raise UsageError(f"{path}: binary data, not lines of text") from None
    if not any(lines):
        raise UsageError(f"{path}: no line that is not blank")
    return [line for line in lines if line]


class BookAnswerer:
    """Answers lines; those of one book should follow each other, because the last book stays in the cache.

    ``begin`` makes a conversation without documents, ``read`` reads a document, ``describe`` names the model that
    answered.
    """

    def __init__(
        self,
        begin: Callable[[], ChatSession],
        read: Callable[[str], Document],
        describe: Callable[[ChatSession], RunInfo],
    ) -> None:
        self._begin, self._read, self._describe = begin, read, describe
        self._file, self._opened = (
            "",
            begin(),
        )  # the last book, and the conversation about it or why there is none
        self._error: dict[str, str] | None = None

    def answer(self, line: Line, each: Each) -> Answered:
        assert isinstance(line, BookLine)
        if line.file != self._file:
            self._open(line.file)
        head = {"custom_id": line.id, "file": line.file, "question": line.question}
        if self._error is None:
            try:
                tally = self._ask(line.question, each)
                answer = answer_object(tally, self._describe(self._opened))
                return Answered(_record(head, answer, None), len(tally.token_ids))
            except Exception as error:
                return Answered(_record(head, {}, error_object(error)))
        return Answered(_record(head, {}, self._error))

    def _open(self, file: str) -> None:
        self._file, self._error, self._opened = file, None, self._begin()
        try:
            self._opened.add(self._read(file))
        except Exception as error:
            self._error = error_object(error)

    def _ask(self, question: str, each: Each) -> Tally:
        tally, session = Tally(), self._opened
        try:
            for event in session.ask(question):
                tally.add(event)
                each(event)
        finally:
            session.clear()  # the next question follows the document, too
        return tally


def _record(head: dict[str, str], answer: dict[str, Any], error: dict[str, str] | None) -> dict[str, Any]:
    return {"schema": SCHEMA, **head, **answer, "error": error}
