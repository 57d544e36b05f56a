"""PDF files: locked, scanned, damaged, oddly described; and libraries that stay silent."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypdf import PageObject, PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas
from support.documents import opened, refusal

from triforce_chat.documents import read
from triforce_chat.errors import DocumentError


def pdf(*texts: str, title: str | None = None, compress: int = 1) -> bytes:
    """One page for each text; an empty text becomes a page that holds only a drawing."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1, pageCompression=compress)
    if title is not None:
        canvas.setTitle(title)
    for text in texts:
        canvas.rect(50, 50, 100, 100)
        for row, line in enumerate(text.split("\n")):
            canvas.drawString(72, 720 - 20 * row, line)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def encrypted(data: bytes, user: str, algorithm: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(data)))
    writer.encrypt(user, "owner", algorithm=algorithm)
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def test_pages_and_title(tmp_path: Path) -> None:
    path = tmp_path / "file.pdf"
    path.write_bytes(pdf("First page.\nSecond line.", "Last page.", title="A  Fine\nTitle"))
    document = read(str(path))
    assert (document.title, document.unit, document.warning) == ("A Fine Title", "page", None)
    assert [page.text for page in document.pages] == ["First page.\nSecond line.\n", "Last page.\n"]


@pytest.mark.parametrize("title", [" \t ", "untitled", "Microsoft Word - final2.doc", "thesis.dvi"])
def test_titles_that_are_none(tmp_path: Path, title: str) -> None:
    path = tmp_path / "the name.pdf"
    path.write_bytes(pdf("text", title=title))
    assert read(str(path)).title == "the name"


def test_broken_metadata_does_not_matter() -> None:
    data = pdf("text", title="Good")
    assert opened(data.replace(b"/Info", b"/Infx")).title == "standard input"
    assert opened(data.replace(b"/Title (Good)", b"/Title 99 9 R")).text == "text\n"


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_encryption(algorithm: str) -> None:
    data = encrypted(pdf("secret words"), "öpen", algorithm)
    with pytest.raises(DocumentError, match="encrypted: pass its password with --password"):
        opened(data)
    with pytest.raises(DocumentError, match="this password does not open it"):
        opened(data, "wrong")
    assert opened(data, "öpen").text == "secret words\n"
    assert opened(data, "owner").text == "secret words\n"


def test_an_empty_user_password_needs_none() -> None:
    data = encrypted(pdf("for all"), "", "AES-256")
    assert opened(data).text == opened(data, "not needed").text == "for all\n"


def test_pages_without_text_are_named() -> None:
    document = opened(pdf("a", "", "", "d", ""))
    assert document.empty_pages == (2, 3, 5)
    assert document.warning == "pages 2-3, 5 contain no text: scanned?"


def test_scans_are_refused() -> None:
    with pytest.raises(DocumentError, match="pages 1-2 contain no text; if this is a scan, try --ocr"):
        opened(pdf("", ""))


def failing_on(broken: str, error: type[Exception]) -> Callable[[PageObject], str]:
    extract = PageObject.extract_text

    def extract_text(page: PageObject) -> str:
        text = str(extract(page))
        if broken in text:
            raise error
        return text

    return extract_text


@pytest.mark.parametrize("error", [ValueError, RecursionError, KeyError])
def test_one_bad_page_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr("triforce_chat.documents.pdf.pdfium_texts", lambda *_: {})
    monkeypatch.setattr(PageObject, "extract_text", failing_on("bad", error))
    document = opened(pdf("good", "bad", "fine"))
    assert document.text == "good\nfine\n"
    assert (document.broken, document.warning) == ((2,), "page 2 is damaged and left out")
    with pytest.raises(DocumentError, match="damaged, none of its 2 page"):
        opened(pdf("bad", "bad"))


def test_truncated_and_empty_files() -> None:
    data = pdf("text", "more")
    for broken in (data[:20], data[: len(data) // 3], b"%PDF-1.7\n%%EOF"):
        with pytest.raises(DocumentError, match="standard input: "):
            opened(broken)


def test_libraries_are_silent_and_left_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("pypdf")
    before = (logger.level, list(logger.handlers), list(warnings.filters))
    data = pdf("text")
    assert opened(data[: data.rindex(b"startxref")] + b"startxref\n7\n%%EOF").text == "text\n"
    assert (logger.level, list(logger.handlers), list(warnings.filters)) == before
    assert capfd.readouterr() == ("", "")


def test_no_log_record_is_made(caplog: pytest.LogCaptureFixture) -> None:
    data = pdf("text")
    broken = data[: data.rindex(b"startxref")] + b"startxref\n7\n%%EOF"
    PdfReader(io.BytesIO(broken))
    assert caplog.records, "this file makes the library talk"
    caplog.clear()
    opened(broken)
    assert not caplog.records


SEED = pdf("Some words on a page.", "And on another.", title="Seed", compress=0)
EDITS = st.lists(st.tuples(st.integers(9, len(SEED) - 1), st.binary(max_size=3)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(EDITS)
def test_mutations_raise_nothing_but_document_errors(edits: list[tuple[int, bytes]]) -> None:
    data = SEED
    for offset, new in edits:
        data = data[:offset] + new + data[offset + 1 :]
    assert "\n" not in (refusal(data) or "")
