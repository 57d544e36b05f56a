"""Books as tokens: texts split into paragraphs, each tokenized once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from triforce_chat.documents import read
from triforce_chat.errors import DocumentError, UsageError

Encode = Callable[[str], list[int]]

SUFFIXES = frozenset({".txt", ".md"})
PARAGRAPH_CHARACTERS = 2_000  # longer paragraphs are split at the end of a line or sentence
GAP = "\n\n"
_FOLLOWING = "A"
_BLANK = re.compile(r"\n[ \t]*\n\s*")
_PIECE_END = re.compile(r"\n|(?<=[.!?]) ")


@dataclass(slots=True)
class PieceTokenizer:
    """Tokenizes pieces of a text so that the concatenated ids equal those of the whole text."""

    encode: Encode
    _following: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._following = self.encode(_FOLLOWING)

    def piece(self, text: str, gap: str = GAP) -> list[int]:
        """The ids of ``text`` and of the gap after it, tokenized as if more text followed."""
        ids, size = self.encode(text + gap + _FOLLOWING), len(self._following)
        return ids[:-size] if ids[-size:] == self._following else self.encode(text) + self.encode(gap)


@dataclass(frozen=True, slots=True)
class Book:
    """A tokenized text in paragraphs; each includes the gap that follows it."""

    title: str
    paragraphs: list[array[int]]

    @staticmethod
    def of(title: str, text: str, encode: Encode) -> Book:
        """Split and tokenize ``text``."""
        tokenizer = PieceTokenizer(encode)
        return Book(title, [array("i", tokenizer.piece(part)) for part in paragraphs(text)])

    @property
    def tokens(self) -> int:
        return sum(map(len, self.paragraphs))


def load_books(paths: Iterable[str | Path], encode: Encode, exclude: Iterable[str] = ()) -> list[Book]:
    """Load the files at ``paths`` and in folders there, sorted by path, each file once.

    ``exclude`` lists file names, with or without suffix, to leave out. In folders only .txt and .md files are
    read, and unreadable ones are skipped. Raises ``DocumentError`` for a named file that cannot be read and
    ``UsageError`` when there is no text at all.
    """
    named = {Path(path).expanduser() for path in paths}
    found = {
        file: _book(file, encode) if file in named else _book_if_any(file, encode)
        for file in text_files(named, exclude)
    }
    books = [book for _, book in sorted(found.items()) if book is not None]
    if not books:
        raise UsageError("there is no text; name .txt or .md files, or folders that contain some")
    return books


def text_files(paths: Iterable[str | Path], exclude: Iterable[str] = ()) -> list[Path]:
    """The files at ``paths`` and the .txt and .md files in folders there, sorted, without those to ``exclude``."""
    excluded = set(exclude)
    files = {file for path in paths for file in _files(Path(path).expanduser())}
    return sorted(file for file in files if excluded.isdisjoint((file.name, file.stem)))


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of ``text`` without blank lines; very long ones are split."""
    for paragraph in _BLANK.split(text):
        yield from filter(None, map(str.strip, _cut(paragraph)))


def _cut(text: str) -> Iterator[str]:
    while len(text) > PARAGRAPH_CHARACTERS:
        ends = [match.end() for match in _PIECE_END.finditer(text, 1, PARAGRAPH_CHARACTERS)]
        end = ends[-1] if ends else PARAGRAPH_CHARACTERS
        yield text[:end]
        text = text[end:]
    yield text


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in path.rglob("*"):
        if file.suffix.lower() in SUFFIXES and file.is_file():
            yield file


def _book(file: Path, encode: Encode) -> Book:
    document = read(str(file))
    return Book.of(document.title, document.text, encode)


def _book_if_any(file: Path, encode: Encode) -> Book | None:
    try:
        return _book(file, encode)
    except DocumentError:
        return None
