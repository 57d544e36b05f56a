"""Reading: the choice of the format, the ways to fail, page selection and what is said about gaps."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import ROOT

from triforce_chat.documents import Document, Page, PageRange, parse_pages, read
from triforce_chat.documents.ranges import fold
from triforce_chat.documents.reader import detect
from triforce_chat.errors import DocumentError, UsageError

REAL_PDFS = sorted((ROOT.parent / "shared" / "data" / "pdf").glob("*.pdf"))
REAL_REFUSALS = {
    "grayscale-image.pdf": "page 1 contains no text",
    "libreoffice-writer-password.pdf": "--password",
    "unreadablemetadata.pdf": "damaged",
}


def pages(*texts: str) -> Document:
    return Document("Book", "book.pdf", tuple(Page(i, text) for i, text in enumerate(texts, 1)))


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("data", "suffix", "kind"),
    [
        (b"%PDF-1.7 ...", ".txt", "PDF"),
        (b"\n %PDF-1.4", "", "PDF"),
        (b"PK\x03\x04...", "", "EPUB"),
        (b"<!DOCTYPE html><p>x", ".txt", "HTML"),
        (b"\xef\xbb\xbf <HTML>", "", "HTML"),
        ("<html>".encode("utf-16"), "", "HTML"),
        (b'<?xml version="1.0"?>\n<html xmlns="x">', "", "HTML"),
        (b"<?xml version='1.0'?><feed/>", ".xml", "text"),
        (b"<p>fragment", ".htm", "HTML"),
        (b"# Title", ".md", "Markdown"),
        (b"# Title", "", "text"),
        (b"not a PDF", ".pdf", "PDF"),
    ],
)
def test_content_tells_the_format_before_the_extension(data: bytes, suffix: str, kind: str) -> None:
    assert detect(data, suffix) == kind


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "a short tale.txt"
    path.write_bytes(b"Once upon a time.\r\nThe end.\r")
    document = read(str(path))
    assert (document.title, document.source, document.unit) == ("a short tale", str(path), "section")
    assert document.pages == (Page(1, "Once upon a time.\nThe end.\n"),)
    assert document.warning is None


def test_standard_input() -> None:
    document = read("-", stdin=io.BytesIO("Grüße".encode()))
    assert (document.title, document.source, document.text) == ("standard input", "-", "Grüße")


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "x.txt").write_text("here")
    assert read("~/x.txt").text == "here"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("empty.txt", b"", "empty"),
        ("blank.txt", b" \n\n\t ", "contains no text"),
        ("photo.txt", bytes(range(256)) * 8, "binary data"),
        ("fake.pdf", b"just words", "damaged, cannot be read as PDF"),
        ("fake.epub", b"just words", "damaged, cannot be read as EPUB"),
        ("blank.html", b"<html><script>var x</script>", "contains no text"),
    ],
)
def test_unusable_files_are_one_line(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DocumentError) as error:
        read(str(path))
    assert one_line(error).startswith(f"{path}: ")
    assert says in str(error.value)


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    for source, says in [
        (str(tmp_path), "is a folder without documents; give a file"),
        (str(tmp_path / "none.pdf"), "no such file"),
        (str(tmp_path / "two\nlines"), "no such file"),
        ("nul\0byte", "cannot be read .*null"),
        ("x" * 5000, "cannot be read"),
    ]:
        with pytest.raises(DocumentError, match=says) as error:
            read(source)
        one_line(error)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(DocumentError, match="no permission"):
        read(str(path))


def test_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DocumentError, match="no permission"):
        read(str(tmp_path / "secret.txt"))


def test_endless_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triforce_chat.documents.reader.MAX_INPUT", 1 << 20)
    with pytest.raises(DocumentError, match="larger than 1 MiB"):
        read("-", stdin=io.BytesIO(b"x" * (2 << 20)))


def test_titles_carry_no_escape_codes() -> None:
    page = b"<html><title>Red \x1b[31m\n  alert\x07</title><p>text</p>"
    assert read("-", stdin=io.BytesIO(page)).title == "Red [31m alert"


@pytest.mark.parametrize(
    ("spec", "ranges"),
    [
        ("7", (PageRange(7, 7),)),
        ("1-80,90", (PageRange(1, 80), PageRange(90, 90))),
        (" 3 - 4 , 12- ", (PageRange(3, 4), PageRange(12, None))),
        ("2–3", (PageRange(2, 3),)),
    ],
)
def test_parse_pages(spec: str, ranges: tuple[PageRange, ...]) -> None:
    assert parse_pages(spec) == ranges


@pytest.mark.parametrize("spec", ["", ",", "1,,2", "a", "-5", "1--2", "1-2-3", "0", "0-3", "5-3", "1.5", "٣"])
def test_malformed_pages(spec: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_pages(spec)
    one_line(error)


@given(st.sets(st.integers(1, 60), min_size=1, max_size=20))
def test_folded_numbers_parse_back(numbers: set[int]) -> None:
    ranges = parse_pages(fold(numbers))
    assert {n for n in range(1, 70) if any(n in chosen for chosen in ranges)} == numbers


def test_long_lists_are_cut() -> None:
    assert fold(range(1, 200, 2)).endswith("39, ... (100 in all)")


def test_select_keeps_numbers_and_order() -> None:
    chosen = pages("a", "b", "c", "d").select(parse_pages("4,2-3,3"))
    assert [(page.number, page.text) for page in chosen.pages] == [(2, "b"), (3, "c"), (4, "d")]
    assert chosen.select(parse_pages("3-")).text == "cd"


@pytest.mark.parametrize("spec", ["5", "1-5", "5-", "2,9"])
def test_select_out_of_range(spec: str) -> None:
    with pytest.raises(UsageError, match=r"out of range: Book has 4 pages"):
        pages("a", "b", "c", "d").select(parse_pages(spec))


def test_select_what_was_left_out_before() -> None:
    with pytest.raises(UsageError, match="none of these pages"):
        pages("a", "b", "c").select(parse_pages("1,3")).select(parse_pages("2"))


def test_warning_names_every_gap() -> None:
    document = Document("B", "b", tuple(Page(i, "x" * (i in (1, 7))) for i in range(1, 8)), broken=(3,))
    assert document.empty_pages == (2, 3, 4, 5, 6)
    assert document.warning == "pages 2, 4-6 contain no text: scanned?; page 3 is damaged and left out"
    assert document.select(parse_pages("1-2")).warning == "page 2 contains no text: scanned?"
    assert document.select(parse_pages("1,7")).warning is None


def test_selected_pages_need_text() -> None:
    with pytest.raises(DocumentError, match="pages 2-3 contain no text; if this is a scan"):
        pages("a", "", " \n", "d").select(parse_pages("2-3"))


@pytest.mark.skipif(not REAL_PDFS, reason="0 real PDF files next to the repository")
@pytest.mark.parametrize("path", REAL_PDFS, ids=lambda path: path.name)
def test_real_pdfs(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if path.name in REAL_REFUSALS:
        with pytest.raises(DocumentError, match=REAL_REFUSALS[path.name]) as error:
            read(str(path))
        one_line(error)
    else:
        document = read(str(path))
        assert [page.number for page in document.pages] == list(range(1, len(document.pages) + 1))
        assert document.title.strip()
    assert capfd.readouterr() == ("", "")


def test_example_reads_as_it_was_written() -> None:
    source = ROOT / "examples" / "the-lighthouse-at-varra.md"
    document = read(str(source.with_suffix(".pdf")))
    assert (document.title, len(document.pages), document.warning) == ("The Lighthouse at Varra", 10, None)
    body = "".join(page.text.removesuffix(f"{page.number}\n") for page in document.pages)
    written = source.read_text(encoding="utf-8").translate(str.maketrans("", "", "#*-"))
    assert "".join(body.split()).replace("-", "").replace("–", "") == "".join(written.split())
    assert set(body.replace("–", "").replace("-", "").split()) <= set(written.split())


def test_parsers_are_imported_on_use() -> None:
    code = "import sys, triforce_chat.documents; print({'pypdf', 'bs4'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
