"""From a path or standard input to a document: fetch the bytes, tell the format, parse, check."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType
from typing import BinaryIO

from triforce_chat.documents import apart
from triforce_chat.documents.addresses import is_url, name_of
from triforce_chat.documents.encoding import MARKS
from triforce_chat.documents.model import Document, Heading, Page, Parsed
from triforce_chat.errors import DocumentError

STDIN = "-"
STDIN_TITLE = "standard input"
MAX_INPUT = 512 << 20  # bytes; also ends the reading of devices that never do
MAX_TITLE = 200  # characters
MAX_HEADINGS = 10_000
HEAD = 1024  # bytes that tell the format

# Of what is packed as a ZIP: a name or a media type that tells the format. All else may be an EPUB.
MEMBERS = (
    (b"mimetypeapplication/epub+zip", "EPUB"),
    (b"mimetypeapplication/vnd.oasis.opendocument.", "OpenDocument"),
    (b"META-INF/container.xml", "EPUB"),
    (b"word/document.xml", "Word"),
    (b"ppt/presentation.xml", "PowerPoint"),
    (b"content.xml", "OpenDocument"),
)
# Formats that this program does not read, by (place, first bytes).
OTHERS = (
    (60, b"BOOKMOBI", "a Mobi or Kindle book; convert it to EPUB, for instance with Calibre"),
    (60, b"TEXtREAd", "a Mobi book; convert it to EPUB, for instance with Calibre"),
    (0, b"\xeaDRMION\xee", "a protected Kindle book, which cannot be read"),
    (0, b"CONT\x02\x00", "a Kindle book (KFX); convert it to EPUB"),
    (0, b"ITOLITLS", "a Microsoft Reader book; convert it to EPUB"),
    (0, b"AT&TFORM", "a DjVu file; convert it to PDF"),
    (
        0,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "a file from an old version of Office; save it as .docx, .pptx or PDF",
    ),
    (0, b"{\\rtf", "an RTF file; save it as .docx, .odt or PDF"),
    *(
        (0, first, "an image; save it as PDF and read it with --ocr")
        for first in (b"\x89PNG\r\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
    ),
)
EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {".pdf": "PDF", ".epub": "EPUB", ".md": "Markdown", ".markdown": "Markdown"}
    | dict.fromkeys((".html", ".htm", ".xhtml"), "HTML")
    | {".docx": "Word", ".pptx": "PowerPoint"}
    | dict.fromkeys((".odt", ".odp"), "OpenDocument")
)


class EmptyFile(DocumentError):
    """A file that is empty or only white space: leaving it out loses nothing."""


def read(
    source: str, *, password: str | None = None, stdin: BinaryIO | None = None, ocr: bool = False
) -> Document:
    """Read the file at ``source``, a path or an address in the web, or standard input for ``-``.

    ``password`` opens an encrypted PDF; ``ocr`` reads the images on its pages without text; ``stdin`` stands
    in for the process's own. Raises ``DocumentError`` (one line that names the source) for whatever cannot be
    read or holds no text.
    """
    name = _shown(STDIN_TITLE if source == STDIN else source)
    data, suffix = _fetch(source, name, stdin)
    _refuse_others(data, name)
    kind = detect(data, suffix)
    parsed = _parse(data, kind, password, ocr, name)
    pages = tuple(Page(number, text) for number, text in enumerate(parsed.texts, 1))
    title = _line(parsed.title) or _shown(_name(source))
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


def not_empty(path: str) -> str:
    """The path again, of whatever has to be read to know more. Raises EmptyFile for a file without any text."""
    if os.path.isfile(path):  # whoever opens a pipe waits
        with suppress(OSError), open(path, "rb") as file:
            while block := file.read(HEAD):
                if block.strip():
                    return path
            raise _empty(_shown(path), file.tell() > 0)
    return path


def _headings(parsed: Parsed) -> Iterator[Heading]:
    for heading in parsed.headings[:MAX_HEADINGS]:
        title = _line(heading.title)
        if title:
            yield replace(heading, title=title)


def detect(data: bytes, suffix: str = "") -> str:
    """PDF, EPUB, HTML, Markdown or text: recognized by the content if possible, else by the file's extension."""
    head = _unmarked(data[:HEAD]).lstrip().lower()
    if head.startswith(b"%pdf-"):
        return "PDF"
    if head.startswith((b"pk\x03\x04", b"pk\x05\x06")):
        return next((kind for name, kind in MEMBERS if name in data), "EPUB")
    if head.startswith((b"<!doctype html", b"<html")) or (head.startswith(b"<?xml") and b"<html" in head):
        return "HTML"
    return EXTENSIONS.get(suffix, "text")


def _refuse_others(data: bytes, name: str) -> None:
    for at, first, told in OTHERS:
        if data.startswith(first, at):
            raise DocumentError(f"{name}: {told}")
    if data.startswith(b"PK") and b"xl/workbook." in data:
        raise DocumentError(f"{name}: a spreadsheet; save it as PDF or text")


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


def _name(source: str) -> str:
    if source == STDIN:
        return STDIN_TITLE
    return name_of(source) if is_url(source) else PurePath(source).stem


def _fetch(source: str, name: str, stdin: BinaryIO | None) -> tuple[bytes, str]:
    """The bytes, and the suffix of the file's name."""
    if is_url(source):
        from triforce_chat.documents.download import download  # what speaks HTTP takes a while to import

        try:
            data, suffix = download(source)
        except DocumentError as error:
            raise DocumentError(f"{name}: {error}") from None
        return _checked(data, name), suffix
    try:
        data = _bytes(source, stdin)
    except FileNotFoundError:
        raise DocumentError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise DocumentError(f"{name} is a folder without documents; give a file") from None
    except PermissionError:
        raise DocumentError(f"{name}: no permission to read it") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"{name}: cannot be read ({_reason(error)})") from error
    return _checked(data, name), PurePath(source).suffix.lower()


def _bytes(source: str, stdin: BinaryIO | None) -> bytes:
    if source == STDIN:
        if stdin is None and sys.stdin is None:
            raise ValueError("it is closed")
        return (stdin or sys.stdin.buffer).read(MAX_INPUT + 1)
    with open(os.path.expanduser(source), "rb") as file:
        return file.read(MAX_INPUT + 1)


def _checked(data: bytes, name: str) -> bytes:
    if not data.strip():
        raise _empty(name, bool(data))
    if len(data) > MAX_INPUT:
        raise DocumentError(f"{name}: larger than {MAX_INPUT >> 20} MiB")
    return data


def _empty(name: str, has_bytes: bool) -> EmptyFile:
    return EmptyFile(f"{name}: {'contains no text' if has_bytes else 'empty'}")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _shown(name: str) -> str:
    return name if name and name.isprintable() else ascii(name)


def _line(title: str) -> str:
    # Titles reach the terminal: no line ends, no escape codes.
    printable = "".join(char if char.isprintable() else " " for char in title)
    return " ".join(printable.split())[:MAX_TITLE]
