"""PDF files by way of pypdf, page by page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO

from pypdf import PasswordType, PdfReader

from triforce_chat.documents.alarm import Late, at_most
from triforce_chat.documents.encoding import clean
from triforce_chat.documents.model import Parsed
from triforce_chat.documents.ocr import Tesseract
from triforce_chat.documents.ranges import fold
from triforce_chat.errors import DocumentError

# What programs write where nobody gave a title; the file's own name says more.
NO_TITLE = re.compile(
    r"\(?(?:untitled|unnamed|none)\)?|microsoft word - .*|.*\.(?:docx?|tex|dvi|indd|qxd|pdf)", re.I
)


PAGE_SECONDS = 8.0  # a dense page takes a twentieth of a second; drawings of millions of strokes take minutes


def parse_pdf(data: bytes, password: str | None = None, ocr: bool = False) -> Parsed:
    """Text of every page; a page that fails is listed as broken.

    ``ocr`` has the images of pages without text recognized. Raises ``DocumentError`` when locked, and when
    there are such pages and nothing to recognize them with.
    """
    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted:
        _unlock(reader, password)
    texts = [_page_text(reader, index) for index in range(len(reader.pages))]
    if not texts:
        raise DocumentError("the PDF has no pages")
    broken = tuple(number for number, text in enumerate(texts, 1) if text is None)
    recognized = _recognized(reader, [index for index, text in enumerate(texts) if text == ""] if ocr else [])
    failed = [index + 1 for index, text in recognized.items() if text is None]
    notices = (f"tesseract could not read page{'s' * (len(failed) > 1)} {fold(failed)}",) if failed else ()
    pages = [recognized.get(index, text) or "" for index, text in enumerate(texts)]
    return Parsed(pages, _title(reader), "page", broken, notices)


def _recognized(reader: PdfReader, indices: Sequence[int]) -> dict[int, str | None]:
    """What tesseract sees on these pages; None where it fails."""
    if not indices:
        return {}
    tesseract = Tesseract.for_pages([index + 1 for index in indices])
    texts = {index: tesseract.page(reader.pages[index]) for index in indices}
    return {index: text and f"{text}\n" for index, text in texts.items()}


def _unlock(reader: PdfReader, password: str | None) -> None:
    for attempt in (password or "", ""):
        if reader.decrypt(attempt) is not PasswordType.NOT_DECRYPTED:
            return
    if password:
        raise DocumentError("the PDF is encrypted and this password does not open it: check --password")
    raise DocumentError("the PDF is encrypted: pass its password with --password")


def _page_text(reader: PdfReader, index: int) -> str | None:
    try:
        with at_most(PAGE_SECONDS):
            text = clean(reader.pages[index].extract_text())
    except MemoryError:
        raise
    except (Exception, Late):  # a damaged page raises almost anything; the others are still worth reading
        return None
    lines = [line.rstrip(" \t") for line in text.rstrip("\n").split("\n")]
    return "\n".join([*lines, ""]) if text else ""


def _title(reader: PdfReader) -> str:
    try:
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except Exception:  # odd metadata must not cost the document
        return ""
    return "" if NO_TITLE.fullmatch(title.strip()) else title
