"""From a path or standard input to a document: fetch the bytes, tell the format, parse, check."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType
from typing import BinaryIO

from triforce_chat.documents import apart
from triforce_chat.documents.encoding import MARKS
from triforce_chat.documents.model import Document, Heading, Page, Parsed
from triforce_chat.errors import DocumentError

STDIN = "-"
STDIN_TITLE = "standard input"
MAX_INPUT = 512 << 20  # bytes; also ends the reading of devices that never do
MAX_TITLE = 200  # characters
MAX_HEADINGS = 10_000
HEAD = 1024  # bytes that tell the format

EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {".pdf": "PDF", ".epub": "EPUB", ".md": "Markdown", ".markdown": "Markdown"}
    | dict.fromkeys((".html", ".htm", ".xhtml"), "HTML")
)


def read(
    source: str, *, password: str | None = None, stdin: BinaryIO | None = None, ocr: bool = False
) -> Document:
    """Read the file at ``source``, or standard input for ``-``.

    ``password`` opens an encrypted PDF; ``ocr`` reads the images on its pages without text; ``stdin`` stands
    in for the process's own. Raises ``DocumentError`` (one line that names the source) for whatever cannot be
    read or holds no text.
    """
    name = _shown(STDIN_TITLE if source == STDIN else source)
    data = _fetch(source, name, stdin)
    kind = detect(data, PurePath(source).suffix.lower())
    parsed = _parse(data, kind, password, ocr, name)
    pages = tuple(Page(number, text) for number, text in enumerate(parsed.texts, 1))
    title = _line(parsed.title) or _shown(STDIN_TITLE if source == STDIN else PurePath(source).stem)
    document = Document(
        name,
        source,
        pages,
        parsed.unit,
        parsed.broken,
        notices=parsed.notices,
        garbled=parsed.garbled,
        headings=tuple(_headings(parsed)),
        has_lines=parsed.has_lines,
    )
    return replace(document.with_text(), title=title)


def _headings(parsed: Parsed) -> Iterator[Heading]:
    for heading in parsed.headings[:MAX_HEADINGS]:
        title = _line(heading.title)
        if title:
            yield replace(heading, title=title)


def detect(data: bytes, suffix: str = "") -> str:
    """PDF, EPUB, HTML, Markdown or text: told by the content if it can be, else by the file's extension."""
    head = _unmarked(data[:HEAD]).lstrip().lower()
    if head.startswith(b"%pdf-"):
        return "PDF"
    if head.startswith((b"pk\x03\x04", b"pk\x05\x06")):
        return "EPUB"
    if head.startswith((b"<!doctype html", b"<html")) or (head.startswith(b"<?xml") and b"<html" in head):
        return "HTML"
    return EXTENSIONS.get(suffix, "text")


def _unmarked(head: bytes) -> bytes:
    mark = next((mark for mark, _ in MARKS if head.startswith(mark)), b"")
    return head[len(mark) :].replace(b"\0", b"")  # UTF-16 and UTF-32 look like ASCII without them


def _parse(data: bytes, kind: str, password: str | None, ocr: bool, name: str) -> Parsed:
    try:
        return apart.parse_apart(data, kind, password, ocr)
    except DocumentError as error:
        raise DocumentError(f"{name}: {error}") from None
    except apart.Damaged as error:
        raise DocumentError(f"{name}: damaged, cannot be read as {kind}") from error


def _fetch(source: str, name: str, stdin: BinaryIO | None) -> bytes:
    try:
        data = _bytes(source, stdin)
    except FileNotFoundError:
        raise DocumentError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise DocumentError(f"{name}: a folder; name one file") from None
    except PermissionError:
        raise DocumentError(f"{name}: no permission to read it") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"{name}: cannot be read ({_reason(error)})") from error
    return _checked(data, name)


def _bytes(source: str, stdin: BinaryIO | None) -> bytes:
    if source == STDIN:
        return (stdin or sys.stdin.buffer).read(MAX_INPUT + 1)
    with open(os.path.expanduser(source), "rb") as file:
        return file.read(MAX_INPUT + 1)


def _checked(data: bytes, name: str) -> bytes:
    if not data:
        raise DocumentError(f"{name}: empty")
    if len(data) > MAX_INPUT:
        raise DocumentError(f"{name}: larger than {MAX_INPUT >> 20} MiB")
    return data


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _line(title: str) -> str:
    # Titles reach the terminal: no line ends, no escape codes.
    printable = "".join(char if char.isprintable() else " " for char in title)
    return " ".join(printable.split())[:MAX_TITLE]
