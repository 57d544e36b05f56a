"""Word, PowerPoint and OpenDocument files; formats that are refused by name."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from typing import Any

import docx
import pptx
import pytest
from odf.opendocument import OpenDocumentText
from odf.table import Table, TableCell, TableRow
from odf.text import H, List, ListItem, P
from support.documents import opened, refusal
from support.mutations import zipped

from triforce_chat.documents.chapters import chapters_of


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def indented(data: bytes) -> bytes:
    """The archive as programs write it that put each element on a line of its own."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    return zipped([(name, content.replace(b"><", b">\n<")) for name, content in members])


def test_word() -> None:
    document = docx.Document()
    document.core_properties.title = "A report"
    for number, name in enumerate(("Quay", "Ship"), 1):
        document.add_heading(f"{number} {name}", 1)
        document.add_paragraph(f"About the {name.lower()}.")
        document.add_paragraph("an item", "List Bullet")
    table = document.add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "both"
    table.cell(0, 2).text, table.cell(1, 1).text = "third", "middle"
    found = opened(saved(document))
    assert found.title == "A report"
    assert found.text == (
        "1 Quay\n\nAbout the quay.\n\n- an item\n\n2 Ship\n\nAbout the ship.\n\n- an item\n\nboth\tthird\n\tmiddle\n"
    )
    assert [each.name for each in chapters_of(found)] == ["ch. 1", "ch. 2"]


def test_a_word_file_without_properties_has_the_name_of_the_file() -> None:
    document = docx.Document()
    document.add_paragraph("Some text.")
    with zipfile.ZipFile(io.BytesIO(saved(document))) as file:
        members = {name: file.read(name) for name in file.namelist() if name != "docProps/core.xml"}
    kept = members["_rels/.rels"]
    members["_rels/.rels"] = re.sub(rb"<Relationship [^>]*core.xml[^>]*/>", b"", kept)
    assert members["_rels/.rels"] != kept
    assert opened(zipped(list(members.items()))).title == "standard input"


def test_powerpoint() -> None:
    presentation = pptx.Presentation()
    for title in ("Quay", "Ship"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, "first\nsecond"
        slide.shapes.add_table(1, 2, 0, 0, 99, 99).table.cell(0, 1).text = "a cell"
        slide.notes_slide.notes_text_frame.text = "say this"
    found = opened(saved(presentation))
    assert (found.unit, found.title) == ("page", "standard input")
    assert [page.text for page in found.pages] == [
        f"{title}\nfirst\nsecond\n\ta cell\n\nNotes: say this\n" for title in ("Quay", "Ship")
    ]
    assert [each.title for each in chapters_of(found)] == ["Quay", "Ship"]


def test_slides_without_a_title_are_called_by_their_first_line() -> None:
    presentation = pptx.Presentation()
    for number, line in enumerate(("Quay", "", "Ship")):
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        if line:
            slide.shapes.add_textbox(0, number, 99, 99).text_frame.text = f"{line}\nmore"
    found = opened(saved(presentation))
    assert [(each.title, each.start) for each in chapters_of(found)] == [("Quay", (1, 0)), ("Ship", (3, 0))]


def test_opendocument() -> None:
    document = OpenDocumentText()
    for number, name in enumerate(("Quay", "Ship"), 1):
        document.text.addElement(H(outlinelevel=1, text=f"{number} {name}"))
        document.text.addElement(P(text=f"About the {name.lower()}."))
    items, item = List(), ListItem()
    item.addElement(P(text="an item"))
    items.addElement(item)
    document.text.addElement(items)
    table, row = Table(), TableRow()
    for text in ("a", "b"):
        cell = TableCell()
        cell.addElement(P(text=text))
        row.addElement(cell)
    table.addElement(row)
    document.text.addElement(table)
    for data in (saved(document), indented(saved(document))):
        found = opened(data)
        assert found.text == "1 Quay\n\nAbout the quay.\n\n2 Ship\n\nAbout the ship.\n\n- an item\n\na\tb\n"
        assert len(chapters_of(found)) == 2


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(docx.Document())
    monkeypatch.setitem(sys.modules, "docx", None)
    assert refusal(data) == "standard input: this format needs python-docx: pip install python-docx"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (bytes(60) + b"BOOKMOBI" + bytes(99), "a Mobi or Kindle book; convert it to EPUB"),
        (b"{\\rtf1 words}", "an RTF file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "an image; save it as PDF and read it with --ocr"),
        (b"\xff\xd8\xff\xe0" + bytes(99), "an image"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "a file from an old version of Office"),
        (b"AT&TFORM....DJVM", "a DjVu file"),
        (b"PK\x03\x04....xl/workbook.xml", "a spreadsheet"),
        (bytes(5000), "binary data"),
        (b"words\n" + bytes(5000), "binary data"),
    ],
)
def test_other_formats_are_refused_by_name(data: bytes, says: str) -> None:
    assert says in (refusal(data) or "")
