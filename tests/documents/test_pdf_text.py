"""The text of PDF pages: ligatures, hyphens, spaces, what was typed in, and characters that nothing tells."""

from __future__ import annotations

import io
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import FreeText
from pypdf.generic import ArrayObject, DecodedStreamObject, DictionaryObject, NameObject
from reportlab.pdfgen.canvas import Canvas
from support import hostile_documents
from support.documents import opened

from triforce_chat.documents import pdfium
from triforce_chat.documents.glyphs import Glyph, laid_out
from triforce_chat.documents.mending import joined, mended, with_tex_ligatures
from triforce_chat.documents.pdf import parse_pdf
from triforce_chat.documents.readable import doubt, without_glyph_names
from triforce_chat.documents.search import find, pattern
from triforce_chat.errors import DocumentError

PROSE = "The captain spun round on his heel and fronted us; all the brown had gone out of his face. "
SHIFTED = "".join(chr(ord(letter) - 29) if letter.isalpha() else letter for letter in PROSE * 3)


def drawn(draw: Callable[[Canvas], None]) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    draw(canvas)
    canvas.save()
    return buffer.getvalue()


def written(writer: PdfWriter) -> bytes:
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def with_codes(text: str, table: dict[str, str]) -> bytes:
    """A page in a font whose own table says that the characters in ``table`` stand for other ones."""
    writer = PdfWriter(
        clone_from=PdfReader(io.BytesIO(drawn(lambda canvas: canvas.drawString(72, 720, text))))
    )
    rows = "".join(f"<{ord(code):02x}> <{told.encode('utf-16-be').hex()}>\n" for code, told in table.items())
    codes = f"1 begincodespacerange\n<00> <ff>\nendcodespacerange\n{len(table)} beginbfchar\n{rows}endbfchar"
    stream = DecodedStreamObject()
    stream.set_data(f"begincmap\n{codes}\nendcmap".encode())
    font = writer.pages[0]["/Resources"]["/Font"]["/F1"].get_object()
    font[NameObject("/ToUnicode")] = writer._add_object(stream)
    return written(writer)


# Ligatures and hyphens


def test_ligatures_are_found_as_letters() -> None:
    document = opened(with_codes("a X of Yuff", {"X": "ﬁlm", "Y": "ﬄ"}))
    assert document.text == "a film of ffluff\n"
    assert [hit.count for hit in find([document], pattern("film"))] == [1]


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ("o\x0ece, \x0crst a \rood o\x0b, wa\x0fes", "office, first a flood off, waffles"),
        ("o\x1ece, \x1crst a \x1dood o\x1b, wa\x1fes", "office, first a flood off, waffles"),
        ("\x10a \x1crst\x11 \x16 3\x154", "“a first” — 3–4"),
        ("\x10a \x0crst\x11", "\x10a first\x11"),
        ("one line\rand the next", "one line\rand the next"),
        ("a \x0b + \x0e", "a \x0b + \x0e"),
    ],
    ids=["of TeX", "of Cork", "marks of Cork", "accents of TeX", "a line end", "signs"],
)
def test_codes_of_ligatures_in_fonts_of_tex(codes: str, text: str) -> None:
    around = 2 * "Nobody saw the ship that lay before the quay. "
    assert with_tex_ligatures(around + codes) == around + text


def test_pdfium_reads_the_ligatures_of_tex() -> None:
    """By itself: what it does not resolve, pypdf would."""
    data = with_codes(f"{PROSE}a Xrst oZce", {"X": "\x0c", "Z": "\x0e"})
    assert pdfium.pdfium_texts(data, None, 8.0) == {0: f"{PROSE}a first office"}


def test_a_font_of_another_kind_has_no_ligatures_of_tex() -> None:
    codes = "\x01\x0ca\x02\x0eb\x03\x04c"
    assert with_tex_ligatures(codes) == codes


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["a reasonable quan-\ntity of it"], "a reasonable quantity\nof it"),
        (["the old-\nfashioned chest", "an old-fashioned man"], "the old-fashioned\nchest"),
        (["some-\nbody came", "Somebody, some body"], "somebody\ncame"),
        (["a sea-\nchest", "the chest of the sea"], "a seachest\n"),
        (["the brass-\nbound box", "bound in brass"], "the brass-bound\nbox"),
        (["Mr. Stuart-\nSmith", ""], "Mr. Stuart-\nSmith"),
        (["pages 10-\n12", ""], "pages 10-\n12"),
        (["he said--\nand left", ""], "he said--\nand left"),
        (["über-\nmütig", ""], "übermütig\n"),
        (["quan\u00ad\ntity, then", "quan tity"], "quantity,\nthen"),
        (["end quan-\n", "tity"], "end quan-\n"),
    ],
)
def test_hyphens_at_line_ends(texts: list[str], whole: str) -> None:
    assert joined(texts)[0] == whole


def test_a_page_with_divided_words() -> None:
    def draw(canvas: Canvas) -> None:
        canvas.drawString(72, 720, "a reasonable quan-")
        canvas.drawString(72, 706, "tity of it")

    assert opened(drawn(draw)).text == "a reasonable quantity\nof it\n"


def test_stray_characters() -> None:
    assert mended("a\0b \ufffd\ufffd\x02c \uf0b7 d") == "ab \ufffdc • d"


# Spaces


def row(text: str, step: float, width: float = 6.0, base: float = 0.0) -> list[Glyph]:
    return [Glyph(each, at * step, at * step + width, base, 10.0, "") for at, each in enumerate(text)]


@pytest.mark.parametrize(
    ("glyphs", "text"),
    [
        (row("ship", 6), "ship"),
        (row("ship", 6.9), "ship"),  # spaced letters
        ([*row("a", 6), Glyph("b", 8, 14, 0, 10, "")], "a b"),  # no space was drawn between two words
        ([*row("1", 6), Glyph("1", 5.5, 11, 0, 10, " ")], "11"),  # a space that is none
        ([*row("1", 6), Glyph("1", 5.5, 11, 0, 10, "\r\n")], "11"),
        ([*row("a", 6), Glyph("9", 60, 66, 0, 10, "\r\n")], "a\t9"),  # a cell of a table
        ([*row("x", 6), Glyph("2", 6, 9, 3, 6, "")], "x2"),  # an exponent
        ([*row("a", 6), Glyph("b", 0, 6, -12, 10, "\r\n")], "a\nb"),
        ([*row("a\u00ad", 6), Glyph("b", 0, 6, -12, 10, "")], "a-\nb"),
        ([*row("a", 6), Glyph("\x0c", 8, 14, 0, 10, "")], "a \x0c"),  # a ligature of TeX begins a word
        ([*row("\x1c", 6), Glyph("b", 8, 14, 0, 10, "")], "\x1c b"),  # or ends one
        ([*row("a ", 6), Glyph("b", 14, 20, 0, 10, "")], "a b"),  # a space is drawn
    ],
)
def test_the_gap_decides_between_glyphs(glyphs: list[Glyph], text: str) -> None:
    assert laid_out(glyphs) == text


def test_words_without_drawn_spaces_and_rows_of_tables() -> None:
    def draw(canvas: Canvas) -> None:
        for at, word in enumerate(("They", "say", "nothing")):
            canvas.drawString(72 + 50 * at - 12 * (at > 1), 720, word)
        for at, cell in enumerate(("Ship", "Harbour", "Sum")):
            canvas.drawString(72 + 150 * at, 600, cell)

    first, second = opened(drawn(draw)).text.splitlines()
    assert first.split() == ["They", "say", "nothing"]
    assert second == "Ship\tHarbour\tSum"


def test_columns_follow_each_other() -> None:
    def draw(canvas: Canvas) -> None:
        for left, words in ((72, ("one", "two", "three")), (320, ("four", "five", "six"))):
            for at, word in enumerate(words):
                canvas.drawString(left, 720 - 14 * at, word)

    assert opened(drawn(draw)).text.split() == ["one", "two", "three", "four", "five", "six"]


# What was typed in


def form(canvas: Canvas) -> None:
    canvas.acroForm.textfield(name="town", tooltip="Town", value="Bergen", x=72, y=700)
    canvas.acroForm.textfield(name="empty", value="", x=72, y=600)
    canvas.acroForm.checkbox(name="member", checked=True, x=72, y=500)
    canvas.acroForm.checkbox(name="guest", checked=False, x=72, y=400)
    canvas.showPage()


def test_form_fields_are_read() -> None:
    assert opened(drawn(form)).text == "Town: Bergen\n[x] member\n"


def test_free_text_annotations_are_read() -> None:
    writer = PdfWriter()
    writer.add_blank_page(600, 800)
    writer.add_annotation(0, FreeText(text="A note on the page.", rect=(50, 550, 200, 650)))
    assert opened(written(writer)).text == "A note on the page.\n"


# Characters that nothing tells


def test_pages_that_cannot_be_decoded_are_named() -> None:
    def draw(canvas: Canvas) -> None:
        canvas.drawString(72, 720, "A readable page.")
        canvas.showPage()
        canvas.drawString(72, 720, "unreadable")

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(drawn(draw))))
    data = with_codes("unreadable", dict.fromkeys("unreadable", "\ufffd"))
    writer.add_page(PdfReader(io.BytesIO(data)).pages[0])
    document = opened(written(writer))
    assert document.garbled == (3,)
    assert document.pages[2].text == ""
    assert document.warning == "page 3 has characters that the fonts do not identify: try --ocr"
    with pytest.raises(
        DocumentError, match="page 1 has characters that the fonts do not identify: try --ocr"
    ):
        opened(data)


def test_garbled_pages_are_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in the place of tesseract gets an image of the page: it says how large."""
    pytest.importorskip("PIL")
    program = tmp_path / "tesseract"
    program.write_text("#!/bin/sh\nhead -c 24 | tail -c 8 | od -An -tu1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    parsed = parse_pdf(with_codes("unreadable", dict.fromkeys("unreadable", "\ufffd")), ocr=True)
    width, height = (
        int.from_bytes(bytes(map(int, half)), "big")
        for half in (parsed.texts[0].split()[:4], parsed.texts[0].split()[4:])
    )
    assert (width, height, parsed.garbled) == (2481, 3508, ())  # A4, 300 pixels an inch


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (PROSE * 3, 0.0),
        (SHIFTED, 1.0),
        ("ab\ufffd\x03", 0.5),
        ("\uf041\uf042", 1.0),
        ("Да, это так. " * 30, 0.0),
        ("", 0.0),
    ],
)
def test_doubt(text: str, share: float) -> None:
    assert doubt(text) == share


def test_glyph_names_count_as_characters_that_nothing_tells() -> None:
    assert (
        without_glyph_names("a /g3/g15/g7 b (cid:3)(cid:12) and/or 1/c2")
        == "a \ufffd\ufffd\ufffd b \ufffd\ufffd and/or 1/c2"
    )


# Two engines


def test_a_page_that_pdfium_cannot_read_is_read_by_pypdf(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(canvas: Canvas) -> None:
        for text in ("first", "second"):
            canvas.drawString(72, 720, text)
            canvas.showPage()

    monkeypatch.setattr("triforce_chat.documents.pdf.pdfium_texts", lambda *_: {0: "seen by PDFium"})
    assert opened(drawn(draw)).text == "seen by PDFium\nsecond\n"


def test_a_page_that_ends_pdfium_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    data = hostile_documents.repeated_page(5, hostile_documents.stream(hostile_documents.TEXT))
    read = pdfium._text

    def crashing(page: object) -> str:
        crashing.calls += 1  # type: ignore[attr-defined]
        if crashing.calls == 3:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
        return read(page)

    crashing.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(pdfium, "_text", crashing)
    monkeypatch.setattr(pdfium, "ATTEMPTS", 2)
    assert pdfium.pdfium_texts(data, None, 8.0) == {0: "A ship.", 1: "A ship.", 3: "A ship.", 4: "A ship."}


# Passwords


def test_encrypted_attachments_do_not_lock_the_document() -> None:
    plain = drawn(lambda canvas: canvas.drawString(72, 720, "for all"))
    locked = PdfWriter(clone_from=PdfReader(io.BytesIO(plain)))
    locked.encrypt("secret", algorithm="AES-256")
    rules = PdfReader(io.BytesIO(written(locked))).trailer["/Encrypt"].get_object()
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(plain)))
    kept = DictionaryObject({NameObject(name): value for name, value in rules.items()})
    kept[NameObject("/StmF")] = kept[NameObject("/StrF")] = NameObject("/Identity")
    kept[NameObject("/EFF")] = NameObject("/StdCF")
    writer._ID = ArrayObject([*PdfReader(io.BytesIO(written(locked))).trailer["/ID"]])
    reference = writer._add_object(kept)
    data = written(writer).replace(b"/Root ", f"/Encrypt {reference.idnum} 0 R /Root ".encode())
    assert PdfReader(io.BytesIO(data)).is_encrypted
    assert opened(data).text == "for all\n"
