"""Many books and questions: every book is read once, and all its questions are answered from its end."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.batch import heap
from triforce_chat.batch.fingerprint import Fingerprint, Maker
from triforce_chat.batch.lines import Answered, Answering, Line, error_object
from triforce_chat.chat.events import Tally
from triforce_chat.chat.records import SCHEMA, RunInfo, answer_object
from triforce_chat.documents import Document
from triforce_chat.documents.encoding import decode
from triforce_chat.errors import DocumentError, RankLost, TimeLimit, TriforceError, UsageError

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
        """The id of the line, the same in every run that names the file and asks the question in the same words."""
        named = os.fsencode(self.file) + b"\0" + self.question.encode("utf-8", "surrogatepass")
        return hashlib.sha256(named).hexdigest()[:ID_LENGTH]

    @property
    def name(self) -> str:
        return self.file

    @property
    def group(self) -> str:
        return self.file

    @property
    def documents(self) -> tuple[str, ...]:
        return (self.file,)

    @property
    def digest(self) -> str:
        return ""  # the question is part of the id

    def answered(self, answer: dict[str, Any], fingerprint: Fingerprint) -> dict[str, Any]:
        """The record of this line with the object of an answer."""
        return {**self._head, **answer, "fingerprint": fingerprint, "error": None}

    def refused(self, error: dict[str, str]) -> dict[str, Any]:
        return {**self._head, "error": error}

    @property
    def _head(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "custom_id": self.id, "file": self.file, "question": self.question}


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
    answered, and ``maker`` what the answers were made of. Up to ``parallel`` lines are answered at once where the
    engine gains by that.
    """

    def __init__(
        self,
        begin: Callable[[], ChatSession],
        read: Callable[[str], Document],
        describe: Callable[[ChatSession], RunInfo],
        maker: Maker,
        parallel: int,
    ) -> None:
        self._begin, self._read, self._describe, self._maker = begin, read, describe, maker
        self._file, self._opened = "", begin()  # the last book, and the conversation about it
        self._fingerprint: Fingerprint = {}
        self._error: dict[str, str] | None = None  # why there is no such conversation
        self.width = parallel if self._opened.engine.forkable else 1

    def answer(self, lines: Sequence[Line]) -> Answering:
        """An error is that of one line: where several are answered at once, each is then answered by itself."""
        left = {line.id: line for line in lines if isinstance(line, BookLine)}
        groups = deque([list(left.values())])
        try:
            while groups:
                group = groups.popleft()
                try:
                    yield from self._answer(group, left)
                except (RankLost, TimeLimit):
                    raise
                except Exception as error:
                    if len(group) == 1:
                        yield _refused(left.pop(group[0].id), error)
                    else:
                        groups.extend([line] for line in left.values())
        except TimeLimit as error:
            for line in left.values():
                yield _refused(line, error)

    def _answer(self, group: Sequence[BookLine], left: dict[str, BookLine]) -> Answering:
        """Answer lines about one book at once; what is answered is taken out of ``left``."""
        from triforce_chat.chat.together import ask_all

        if group[0].file != self._file:
            self._open(group[0].file)
        if self._error is not None:
            for line in group:
                yield Answered(line.id, left.pop(line.id).refused(self._error))
            return
        tallies = [Tally() for _ in group]
        with closing(ask_all([(self._opened, line.question) for line in group], len(group))) as items:
            for number, made in items:
                if isinstance(made, TriforceError):
                    yield _refused(left.pop(group[number or 0].id), made)
                elif made is not None:
                    if number is not None:
                        tallies[number].add(made)
                    yield made
                elif number is not None and group[number].id in left:
                    yield self._answered(left.pop(group[number].id), tallies[number])

    def _answered(self, line: BookLine, tally: Tally) -> Answered:
        answer = answer_object(tally, self._describe(self._opened))
        return Answered(line.id, line.answered(answer, self._fingerprint), len(tally.token_ids))

    def _open(self, file: str) -> None:
        self._file, self._error, self._opened = file, None, self._begin()
        heap.trim()
        try:
            self._opened.add(self._read(file))
            self._fingerprint = self._maker.fingerprint([file])
        except Exception as error:
            self._error = error_object(error)


def _refused(line: BookLine, error: Exception) -> Answered:
    return Answered(line.id, line.refused(error_object(error)))
