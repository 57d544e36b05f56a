"""Thirty documents over all formats, made of texts that are known, and a count of those that are read as written.

PYTHONPATH=tests python -m support.document_corpus
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docx
import pptx
from odf.opendocument import OpenDocumentText
from odf.text import H, P
from reportlab.lib.pagesizes import A4
from reportlab.lib.utils import simpleSplit
from reportlab.pdfgen.canvas import Canvas

from support.mutations import zipped
from triforce_chat.documents import read
from triforce_chat.documents.chapters import chapters_of

SENTENCES = (
    "The pilot counted the lamps along the breakwater and found one too many.",
    "Her brother kept the ledger of the ferry, in which no crossing was missing.",
    "At low water the old slipway can be seen from the chapel.",
    "Nobody bought the house with the green shutters, although it was cheap.",
    "The miller's daughter had learned to read the barometer before the alphabet.",
    "Three barrels of tar stood in the yard until the autumn gales.",
    "He wrote the letter twice and sent neither of the two.",
)
CHAPTERS = (
    ("The Breakwater", "A Lamp Too Many", "The Ledger", "Low Water"),
    ("Gales", "The Green Shutters", "What the Miller Knew"),
    ("Arrival", "The Chapel", "Two Letters", "The Yard", "Departure"),
)
PARAGRAPHS, MARGIN, LINE, SIZE = 4, 56, 14, 10  # for each chapter; points


@dataclass(frozen=True, slots=True)
class Book:
    """A text in chapters, each of which is a title and its paragraphs."""

    title: str
    chapters: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def marks(self) -> list[str]:
        """The first word of each paragraph, which is found nowhere else."""
        return [text.split()[0] for _, texts in self.chapters for text in texts]


def books() -> Iterator[Book]:
    for number, titles in enumerate(CHAPTERS):
        chapters = [(title, tuple(_paragraphs(number, at))) for at, title in enumerate(titles)]
        yield Book(f"Book {number + 1}", tuple(chapters))


def _paragraphs(book: int, chapter: int) -> Iterator[str]:
    for at in range(PARAGRAPHS):
        first = 3 * book + 2 * chapter + at
        chosen = (SENTENCES[(first + n) % len(SENTENCES)] for n in range(5))
        yield f"Entry{book}{chapter}{at} {' '.join(chosen)}"


def pdf(book: Book, columns: int = 1, table: bool = False) -> bytes:
    """Pages with an outline; each chapter begins a page."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, A4, invariant=1)
    canvas.setTitle(book.title)
    width = (A4[0] - (columns + 1) * MARGIN) / columns
    for title, texts in book.chapters:
        canvas.bookmarkPage(title)
        canvas.addOutlineEntry(title, title)
        canvas.setFont("Times-Bold", 14)
        canvas.drawString(MARGIN, A4[1] - MARGIN, title)
        canvas.setFont("Times-Roman", SIZE)
        for at, text in enumerate(texts):
            column, row = divmod(at, PARAGRAPHS // columns)
            top = A4[1] - MARGIN - 40 - row * 120
            left = MARGIN + column * (width + MARGIN)
            _draw(canvas, text, left, top, width, table)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def _draw(canvas: Canvas, text: str, left: float, top: float, width: float, table: bool) -> None:
    """Draw a paragraph, or its sentences as the rows of a table with numbers."""
    if not table:
        for n, line in enumerate(simpleSplit(text, "Times-Roman", SIZE, width)):
            canvas.drawString(left, top - n * LINE, line)
        return
    for n, sentence in enumerate(text.split(". ")):
        canvas.drawString(left, top - n * LINE, sentence)
        canvas.drawRightString(left + width, top - n * LINE, str(1800 + n))


def html(book: Book) -> bytes:
    parts = [
        f"<h2>{title}</h2>" + "".join(f"<p>{text}</p>" for text in texts) for title, texts in book.chapters
    ]
    return (
        f"<!DOCTYPE html><html><head><title>{book.title}</title><style>p {{}}</style></head><body><h1>{book.title}</h1>"
        f"{''.join(parts)}<script>let x = 1;</script></body></html>"
    ).encode()


def epub(book: Book) -> bytes:
    """Chapters in files whose names are in another order, with a table of contents."""
    count = len(book.chapters)
    files = [f"c{count - n}.xhtml" for n in range(count)]
    items = "".join(
        f'<item id="i{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(files)
    )
    nav = '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    spine = "".join(f'<itemref idref="i{n}"/>' for n in range(count))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata>'
        f'<dc:title xmlns:dc="http://purl.org/dc/elements/1.1/">{book.title}</dc:title></metadata>'
        f"<manifest>{items}{nav}</manifest><spine>{spine}</spine></package>"
    )
    links = "".join(
        f'<li><a href="{name}">{title}</a></li>'
        for name, (title, _) in zip(files, book.chapters, strict=True)
    )
    contents = (
        '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>'
        f'<nav epub:type="toc"><ol>{links}</ol></nav></body></html>'
    )
    container = '<container><rootfiles><rootfile full-path="OEBPS/b.opf"/></rootfiles></container>'
    pages = [
        (f"OEBPS/{name}", f"<html><body>{''.join(f'<p>{text}</p>' for text in texts)}</body></html>".encode())
        for name, (_, texts) in zip(files, book.chapters, strict=True)
    ]
    head = [("mimetype", b"application/epub+zip"), ("META-INF/container.xml", container.encode())]
    return zipped(
        [*head, ("OEBPS/b.opf", package.encode()), ("OEBPS/nav.xhtml", contents.encode()), *sorted(pages)]
    )


def markdown(book: Book) -> bytes:
    parts = [f"## {title}\n\n" + "\n\n".join(texts) for title, texts in book.chapters]
    return ("\n\n".join([f"# {book.title}", *parts]) + "\n").encode()


def text(book: Book) -> bytes:
    parts = [
        f"CHAPTER {n}\n\n{title}\n\n" + "\n\n".join(texts)
        for n, (title, texts) in enumerate(book.chapters, 1)
    ]
    return ("\n\n\n".join([book.title, *parts]) + "\n").encode()


def word(book: Book) -> bytes:
    document = docx.Document()
    for title, texts in book.chapters:
        document.add_heading(title, 1)
        for each in texts[:-1]:
            document.add_paragraph(each)
        document.add_table(1, 2).cell(0, 0).text = texts[-1]
    return _saved(document)


def slides(book: Book) -> bytes:
    presentation = pptx.Presentation()
    for title, texts in book.chapters:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, "\n".join(texts[:-1])
        slide.notes_slide.notes_text_frame.text = texts[-1]
    return _saved(presentation)


def odt(book: Book) -> bytes:
    document = OpenDocumentText()
    for title, texts in book.chapters:
        document.text.addElement(H(outlinelevel=1, text=title))
        for each in texts:
            document.text.addElement(P(text=each))
    return _saved(document)


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


FORMATS: Mapping[str, Callable[[Book], bytes]] = {
    "pdf": pdf,
    "pdf in two columns": lambda book: pdf(book, columns=2),
    "pdf of tables": lambda book: pdf(book, table=True),
    "epub": epub,
    "html": html,
    "markdown": markdown,
    "text": text,
    "word": word,
    "powerpoint": slides,
    "opendocument": odt,
}


@dataclass(frozen=True, slots=True)
class Result:
    """What of a document is read as it was written."""

    name: str
    chapters: bool
    order: bool


def results(folder: Path) -> list[Result]:
    """Write the documents to a folder and read them."""
    return [
        _read(folder, f"{book.title}, {name}", make(book), book)
        for book in books()
        for name, make in FORMATS.items()
    ]


def _read(folder: Path, name: str, data: bytes, book: Book) -> Result:
    path = folder / (f"{name}.md" if name.endswith("markdown") else name)
    path.write_bytes(data)
    document = read(str(path))
    found = [
        chapter.title.removeprefix(f"CHAPTER {n}. ") for n, chapter in enumerate(chapters_of(document), 1)
    ]
    places = [document.text.find(mark) for mark in book.marks]
    in_order = -1 not in places and places == sorted(places)
    return Result(name, found == [title for title, _ in book.chapters], in_order)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = results(Path(folder))
    for each in found:
        if not (each.chapters and each.order):
            print(f"{each.name}: chapters {each.chapters}, order {each.order}")
    chapters, order = sum(each.chapters for each in found), sum(each.order for each in found)
    print(f"{len(found)} documents: chapters right in {chapters}, reading order in {order}")
    sys.exit(min(chapters, order) < 27)


if __name__ == "__main__":
    main()
