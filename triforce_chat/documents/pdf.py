"""PDF files page by page: PDFium reads the text, pypdf what PDFium cannot, and titles, fields and passwords."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TypeVar

from pypdf import PasswordType, PdfReader

from triforce_chat.documents.alarm import Late, at_most
from triforce_chat.documents.encoding import clean
from triforce_chat.documents.headings import page_headings
from triforce_chat.documents.mending import joined, mended, with_tex_ligatures
from triforce_chat.documents.model import Parsed
from triforce_chat.documents.ocr import Tesseract
from triforce_chat.documents.pdf_fields import typed_in
from triforce_chat.documents.pdf_outline import outline
from triforce_chat.documents.pdfium import pdfium_texts, rendered
from triforce_chat.documents.ranges import fold
from triforce_chat.documents.readable import doubt, without_glyph_names
from triforce_chat.errors import DocumentError

# What programs write where no title was given; the file's own name says more.
NO_TITLE = re.compile(
    r"\(?(?:untitled|unnamed|none)\)?|microsoft word - .*|.*\.(?:docx?|tex|dvi|indd|qxd|pdf)", re.I
)
PAGE_SECONDS = 8.0  # a dense page takes a twentieth of a second; drawings of millions of strokes take minutes
DOUBTED = 0.01  # of a page's characters: so many that say nothing, and the page is named
UNREADABLE = 0.5  # of them: then the rest says nothing either
Found = TypeVar("Found")


def parse_pdf(data: bytes, password: str | None = None, ocr: bool = False) -> Parsed:
    """Text of every page; a page that no engine can read is listed as broken, one of unknown characters as garbled.

    ``ocr`` has garbled pages and the images of pages without text recognized. Raises ``DocumentError`` when locked,
    and when there are such pages and nothing to recognize them with.
    """
    reader, data, password = _unlocked(data, password)
    seen = pdfium_texts(data, password, PAGE_SECONDS)
    found = [_page_text(reader, index, seen.get(index)) for index in range(len(reader.pages))]
    if not found:
        raise DocumentError("the PDF has no pages")
    garbled = [index for index, text in enumerate(found) if text and doubt(text) > DOUBTED]
    silent = [index for index, text in enumerate(found) if text == ""]
    recognized = _recognized(reader, data, password, silent, garbled) if ocr else {}
    failed = [index + 1 for index, text in recognized.items() if text is None]
    texts = joined([recognized.get(index) or _kept(text or "") for index, text in enumerate(found)])
    return Parsed(
        texts,
        _title(reader),
        "page",
        broken=tuple(number for number, text in enumerate(found, 1) if text is None),
        garbled=tuple(index + 1 for index in garbled if not recognized.get(index)),
        headings=tuple(_in_time(lambda: outline(reader, texts)) or page_headings(texts)),
        notices=(f"tesseract could not read page{'s' * (len(failed) > 1)} {fold(failed)}",) if failed else (),
    )


def _unlocked(data: bytes, password: str | None) -> tuple[PdfReader, bytes, str | None]:
    """A reader of the file, the file, and the password that opens it. Raises ``DocumentError`` for none."""
    reader = PdfReader(BytesIO(data))
    if not reader.is_encrypted:
        return reader, data, None
    for attempt in (password or "", ""):
        if reader.decrypt(attempt) is not PasswordType.NOT_DECRYPTED:
            return reader, data, attempt
    if _locks_attachments_only(data):
        return _unlocked(data.replace(b"/Encrypt", b"/Ignored"), password)
    if password:
        raise DocumentError("the PDF is encrypted and this password does not open it: check --password")
    raise DocumentError("the PDF is encrypted: pass its password with --password")


def _locks_attachments_only(data: bytes) -> bool:
    """Whether the streams and strings of the document are as they are, and only embedded files are encrypted."""
    reader = PdfReader(BytesIO(data.replace(b"/Encrypt", b"/Ignored")))
    rules = reader.trailer.get("/Ignored")
    if rules is None:
        return False
    filters = rules.get_object()
    used = (filters.get(name, "/Identity") for name in ("/StmF", "/StrF"))
    return "/CF" in filters and all(name == "/Identity" for name in used)


def _page_text(reader: PdfReader, index: int, seen: str | None) -> str | None:
    """What ``seen`` by PDFium is worth keeping, else what pypdf sees, and what was typed into the page."""
    if seen is None or doubt(seen) > DOUBTED:
        other = _in_time(lambda: _by_pypdf(reader, index))
        candidates = [text for text in (seen, other) if text is not None]
        seen = min(candidates, key=doubt, default=None)
    typed = _in_time(lambda: typed_in(reader.pages[index])) or ""
    return None if seen is None and not typed else _tidy(f"{seen or ''}\n{typed}")


def _by_pypdf(reader: PdfReader, index: int) -> str:
    return without_glyph_names(clean(with_tex_ligatures(reader.pages[index].extract_text())))


def _in_time(work: Callable[[], Found]) -> Found | None:
    """The result; None where the work on a page fails or takes too long."""
    try:
        with at_most(PAGE_SECONDS):
            return work()
    except MemoryError:
        raise
    except (Exception, Late):  # a damaged page raises almost anything; the others are still worth reading
        return None


def _tidy(text: str) -> str:
    """Without white space at the ends of lines and of the text."""
    lines = [line.rstrip(" \t") for line in clean(text).strip("\n").split("\n")]
    return "\n".join([*lines, ""]) if any(lines) else ""


def _kept(text: str) -> str:
    return "" if doubt(text) > UNREADABLE else mended(text)


def _recognized(
    reader: PdfReader, data: bytes, password: str | None, silent: Sequence[int], garbled: Sequence[int]
) -> dict[int, str | None]:
    """What tesseract sees in the images of ``silent`` pages and on ``garbled`` ones; None where it fails."""
    if not silent and not garbled:
        return {}
    tesseract = Tesseract.for_pages([index + 1 for index in sorted((*silent, *garbled))])
    texts = {index: tesseract.page(reader.pages[index]) for index in silent}
    texts |= {index: tesseract.text(rendered(data, password, index)) for index in garbled}
    return {index: text and f"{text}\n" for index, text in texts.items()}


def _title(reader: PdfReader) -> str:
    try:
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except Exception:  # odd metadata must not cost the document
        return ""
    return "" if NO_TITLE.fullmatch(title.strip()) else title
