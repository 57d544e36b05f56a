"""Real documents of every kind: those of the repository, small ones made here, and those beside the checkout."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from typing import Any

import docx
import pptx
from odf.opendocument import OpenDocumentText
from odf.text import H, P
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, ByteStringObject
from reportlab.pdfgen.canvas import Canvas

from support.mutations import zipped
from support.places import ROOT

SHARED = ROOT.parent / "shared" / "data"
LARGEST = 100_000  # bytes of a seed; a larger one costs more time than it shows


@cache
def seeds() -> list[tuple[str, bytes]]:
    """(kind, bytes), always in the same order for the same folders."""
    pdfs = [ROOT / "examples" / "the-lighthouse-at-varra.pdf", *sorted((SHARED / "pdf").glob("*.pdf"))]
    found = [("PDF", path.read_bytes()) for path in pdfs if path.is_file()]
    made = [("PDF", made_pdf(0)), ("PDF", made_pdf(1)), ("PDF", locked())]
    books = [("EPUB", book(text)) for text in _texts()]
    texts = [("text", text.encode(name)) for text in _texts() for name in ("utf-8", "utf-16", "cp1251")]
    pages = [("HTML", page(text)) for text in _texts()] + [("Markdown", text.encode()) for text in _texts()]
    office = [(kind, made(text)) for kind, made in OFFICE.items() for text in _texts()[:2]]
    return [each for each in (*found, *made, *books, *texts, *pages, *office) if len(each[1]) <= LARGEST]


def _texts() -> list[str]:
    varra = (ROOT / "examples" / "the-lighthouse-at-varra.md").read_text("utf-8")
    books = [path.read_text("utf-8")[:40_000] for path in sorted((SHARED / "books").glob("*.txt"))]
    return [text.encode("cp1251", "replace").decode("cp1251") for text in (varra, *books[:2])]


def made_pdf(compress: int) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1, pageCompression=compress)
    canvas.setTitle("A small book")
    for number in range(4):
        canvas.bookmarkPage(str(number))
        canvas.addOutlineEntry(f"Chapter {number}", str(number))
        canvas.setFont("Times-Roman" if number % 2 else "Helvetica", 12)
        canvas.drawString(72, 720, f"Chapter {number}. Nobody on the quay had expected the ship.")
        canvas.beginForm(f"form{number}")
        canvas.drawString(72, 600, "Text in a form.")
        canvas.endForm()
        canvas.doForm(f"form{number}")
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def locked() -> bytes:
    """Encrypted with an empty user password; RC4, because AES draws random bytes."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(made_pdf(1))))
    writer._ID = ArrayObject([ByteStringObject(b"0123456789abcdef")] * 2)
    writer.encrypt("", "owner", algorithm="RC4-128")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def word(text: str) -> bytes:
    document = docx.Document()
    document.core_properties.title = "A report"
    for number, paragraph in enumerate(text.split("\n\n")[:40]):
        document.add_heading(f"Chapter {number}", 1) if number % 10 == 0 else None
        document.add_paragraph(" ".join(paragraph.split()), "List Bullet" if number % 7 == 3 else None)
    table = document.add_table(3, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "merged"
    table.cell(2, 2).text = "last"
    return _saved(document)


def slides(text: str) -> bytes:
    presentation = pptx.Presentation()
    for number, paragraph in enumerate(text.split("\n\n")[:8]):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = f"Slide {number}", " ".join(paragraph.split())
        slide.shapes.add_table(2, 2, 0, 0, 99, 99).table.cell(1, 1).text = "a cell"
        slide.notes_slide.notes_text_frame.text = "a note"
    return _saved(presentation)


def odf_text(text: str) -> bytes:
    document = OpenDocumentText()
    for number, paragraph in enumerate(text.split("\n\n")[:40]):
        if number % 10 == 0:
            document.text.addElement(H(outlinelevel=1, text=f"Chapter {number}"))
        document.text.addElement(P(text=paragraph))
    return _saved(document)


def _saved(document: Any) -> bytes:
    """The members of the archive with a fixed date, so that the bytes are the same at every time."""
    buffer = io.BytesIO()
    document.save(buffer)
    with zipfile.ZipFile(buffer) as archive:
        return zipped([(name, archive.read(name)) for name in archive.namelist()])


OFFICE = {"Word": word, "PowerPoint": slides, "OpenDocument": odf_text}


def page(text: str) -> bytes:
    paragraphs = text.split("\n\n")
    body = "".join(f"<p class='x'>{each[:800]}</p>\n" for each in paragraphs)
    return f"<!DOCTYPE html><html><head><title>T</title></head><body><h1>A</h1>{body}</body></html>".encode()


def book(text: str) -> bytes:
    """An EPUB of three chapters with a container, a package and a table of contents."""
    third = len(text) // 3
    chapters = [page(text[at * third : (at + 1) * third]) for at in range(3)]
    items = "".join(
        f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(3)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(3))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><metadata><dc:title>Book</dc:title>'
        f"</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = '<container><rootfiles><rootfile full-path="OEBPS/b.opf"/></rootfiles></container>'
    return zipped(
        [
            ("mimetype", b"application/epub+zip"),
            ("META-INF/container.xml", container.encode()),
            ("OEBPS/b.opf", package.encode()),
            *((f"OEBPS/c{n}.xhtml", chapter) for n, chapter in enumerate(chapters)),
        ]
    )
