"""Word, PowerPoint and OpenDocument files: paragraphs, lists and tables in order; slides are pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any
from xml.parsers import expat
from zipfile import ZipFile

from triforce_chat.documents.archive import Archive
from triforce_chat.documents.html import Flow
from triforce_chat.documents.model import Heading, Parsed
from triforce_chat.errors import DocumentError

LEVELS = 6
DEEPEST = 20  # groups of shapes, or lists, within each other
# What PowerPoint writes and python-docx makes up where no title was given; the file's own name says more.
NO_TITLES = ("PowerPoint Presentation", "Word Document")
_HEADING = re.compile(r"heading ([1-9])", re.I)
_FOOTNOTES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def parse_docx(data: bytes) -> Parsed:
    """A Word file, with its footnotes after the text."""
    docx = _checked(data, "docx", "python-docx")
    document = docx.Document(BytesIO(data))
    flow = Flow()
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            _table(flow, ([cell.text for cell in _once(row.cells)] for row in block.rows))
        else:
            _paragraph(flow, block.text, *_style(block.style.name if block.style else ""))
    for note in _footnotes(document):
        _paragraph(flow, note)
    return _parsed(flow, _title(document))


def parse_pptx(data: bytes) -> Parsed:
    """A PowerPoint file: a page for each slide, with its notes below."""
    pptx = _checked(data, "pptx", "python-pptx")
    presentation = pptx.Presentation(BytesIO(data))
    texts, headings = [], []
    for number, slide in enumerate(presentation.slides, 1):
        texts.append("".join(f"{line}\n" for line in _slide_lines(slide)))
        title = slide.shapes.title.text_frame.text if slide.shapes.title is not None else ""
        headings += _slide_heading(title, texts[-1], number)
    return Parsed(texts, _title(presentation), "page", headings=tuple(headings))


def _title(document: Any) -> str:
    title: str = document.core_properties.title
    return "" if title in NO_TITLES else title


def parse_odf(data: bytes) -> Parsed:
    """An OpenDocument text, or a presentation with a page for each slide."""
    _checked(data, "odf", "odfpy")
    with ZipFile(BytesIO(data)) as file:  # odfpy would keep what stands before an error
        expat.ParserCreate().Parse(file.read("content.xml"), True)
    from odf.opendocument import load
    from odf.teletype import extractText

    document = load(BytesIO(data))
    title = "".join(extractText(node) for node in document.meta.childNodes if _kind(node) == "title")
    parts = {_kind(node): node for node in document.body.childNodes}
    if "presentation" in parts:
        slides = [node for node in parts["presentation"].childNodes if _kind(node) == "page"]
        texts = [_odf_flow(slide, extractText).text() for slide in slides]
        headings = [each for number, text in enumerate(texts, 1) for each in _slide_heading("", text, number)]
        return Parsed(texts, title, "page", headings=tuple(headings))
    if "text" not in parts:
        raise DocumentError("an OpenDocument file without text; save spreadsheets and drawings as PDF")
    return _parsed(_odf_flow(parts["text"], extractText), title)


def _checked(data: bytes, module: str, package: str) -> Any:
    """The library for a format. Raises ``DocumentError`` if it is not installed, and for what unpacks to too much."""
    import importlib

    with ZipFile(BytesIO(data)) as file:
        Archive(file).require(name for name in file.namelist() if name.endswith((".xml", ".rels")))
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DocumentError(f"this format needs {package}: pip install {package}") from None


def _parsed(flow: Flow, title: str) -> Parsed:
    texts, headings = flow.sections()
    return Parsed(texts, title, headings=tuple(headings))


def _paragraph(flow: Flow, text: str, level: int = 0, bullet: bool = False) -> None:
    """A paragraph; ``level`` above 0 makes it a heading."""
    flow.gap(1 if bullet else 2)
    if not text.strip():
        return
    if level:
        flow.headings.append((flow.line, level))
    if bullet:
        flow.bullet()
    flow.words(text)
    flow.gap(1 if bullet else 2)


def _table(flow: Flow, rows: Iterable[Iterable[str]]) -> None:
    flow.gap(2)
    for row in rows:
        flow.verbatim("\t".join(" ".join(cell.split()) for cell in row) + "\n")
    flow.gap(2)


def _style(name: str) -> tuple[int, bool]:
    """(rank of a heading or 0, whether it is an item of a list)."""
    heading = _HEADING.match(name)
    return int(heading[1]) if heading else 1 if name == "Title" else 0, name.startswith("List")


def _once(cells: Iterable[Any]) -> Iterator[Any]:
    """Without the repetitions of a cell that goes over several columns."""
    before = None
    for cell in cells:
        if cell._tc is not before:
            yield cell
        before = cell._tc


def _footnotes(document: Any) -> Iterator[str]:
    from docx.oxml import parse_xml

    parts = [rel.target_part for rel in document.part.rels.values() if rel.reltype == _FOOTNOTES]
    for note in (note for part in parts for note in parse_xml(part.blob).iter(f"{_WORD}footnote")):
        words = "".join(text.text or "" for text in note.iter(f"{_WORD}t"))
        if words.strip():
            yield f"[{note.get(f'{_WORD}id')}] {words.strip()}"


def _slide_heading(title: str, text: str, number: int) -> list[Heading]:
    """A slide is called by its title, else by its first line; one of pictures alone has no name."""
    names = [" ".join(line.split()) for line in (title, *text.split("\n"))]
    return [Heading(name, 1, number, 0) for name in list(filter(None, names))[:1]]


def _slide_lines(slide: Any) -> Iterator[str]:
    yield from _shape_lines(slide.shapes, 0)
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and notes.text.strip():
        yield f"\nNotes: {notes.text.strip()}"


def _shape_lines(shapes: Iterable[Any], depth: int) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes") and depth < DEEPEST:
            yield from _shape_lines(shape.shapes, depth + 1)
        elif getattr(shape, "has_table", False):
            yield from (
                "\t".join(" ".join(cell.text.split()) for cell in row.cells) for row in shape.table.rows
            )
        elif shape.has_text_frame:
            yield from (
                line.text.replace("\v", "\n") for line in shape.text_frame.paragraphs if line.text.strip()
            )


def _odf_flow(root: Any, words: Callable[[Any], str]) -> Flow:
    flow = Flow()
    for kind, node in _odf_blocks(root):
        if kind == "table":
            rows = (row for row in _below(node, "table-row"))
            _table(flow, ([words(cell) for cell in _below(row, "table-cell")] for row in rows))
        elif kind == "h":
            _paragraph(flow, words(node), min(int(node.getAttribute("outlinelevel") or 1), LEVELS))
        else:
            _paragraph(flow, words(node), bullet=kind == "item")
    return flow


def _odf_blocks(root: Any) -> Iterator[tuple[str, Any]]:
    """Paragraphs ("p"), items of lists, headings ("h") and tables in order."""
    stack = [(node, False) for node in reversed(root.childNodes)]
    while stack:
        node, inside = stack.pop()
        kind = _kind(node)
        if kind in ("p", "h", "table"):
            yield ("item" if inside and kind == "p" else kind), node
        elif kind != "tracked-changes":
            inside = inside or kind == "list"
            stack += [(child, inside) for child in reversed(node.childNodes)]


def _below(root: Any, kind: str) -> Iterator[Any]:
    """The elements of this kind, those within others of it left out."""
    stack = list(reversed(root.childNodes))
    while stack:
        node = stack.pop()
        if _kind(node) == kind:
            yield node
        else:
            stack += reversed(node.childNodes)


def _kind(node: Any) -> str:
    """An element's name; nothing for text, such as the white space with which some programs indent elements."""
    name = getattr(node, "qname", None)
    return name[1] if name else ""
