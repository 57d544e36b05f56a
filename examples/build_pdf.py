"""Typeset the example document: ``python examples/build_pdf.py`` writes the PDF next to its Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reportlab.lib.enums import TA_CENTER, TA_JUSTIFY
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Flowable, HRFlowable, Paragraph, SimpleDocTemplate, Spacer

SOURCE = Path(__file__).with_name("the-lighthouse-at-varra.md")
AUTHOR = "The triforce-chat authors"

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=10, leading=13.2, spaceAfter=5)
BODY.alignment, BODY.allowWidows, BODY.allowOrphans = TA_JUSTIFY, 0, 0
TITLE = ParagraphStyle("title", fontName="Times-Bold", fontSize=23, leading=28, alignment=TA_CENTER)
SUBTITLE = ParagraphStyle("subtitle", BODY, fontName="Times-Italic", alignment=TA_CENTER, leading=14)
HEADING = ParagraphStyle(
    "heading", fontName="Times-Bold", fontSize=13, leading=16, spaceBefore=9, spaceAfter=4, keepWithNext=1
)
ITEM = ParagraphStyle("item", BODY, leftIndent=10, bulletIndent=0, spaceAfter=3, alignment=0)


class Book(SimpleDocTemplate):
    """Numbers its pages."""

    def afterPage(self) -> None:  # noqa: N802 (reportlab's hook; drawn last, a number is extracted last)
        self.canv.setFont("Times-Roman", 9)
        self.canv.drawCentredString(A5[0] / 2, 10 * mm, str(self.page))


def main() -> None:
    build(SOURCE, SOURCE.with_suffix(".pdf"))


def build(source: Path, target: Path) -> None:
    """Write ``target``; the same source gives the same bytes, whenever and wherever it is built."""
    text = source.read_text(encoding="utf-8")
    margins = dict.fromkeys(("leftMargin", "rightMargin"), 18 * mm)
    heights = {"topMargin": 17 * mm, "bottomMargin": 19 * mm}
    title = text.split("\n", 1)[0].removeprefix("# ")
    names = {"title": title, "author": AUTHOR, "lang": "en"}
    Book(str(target), pagesize=A5, invariant=1, **margins, **heights, **names).build(list(flowables(text)))


def flowables(markdown: str) -> Iterator[Flowable]:
    """Title, headings, list items and paragraphs; the source uses no more of Markdown than these."""
    for block in re.split(r"\n{2,}|\n(?=- )", markdown.strip()):
        yield from _flowables(re.sub(r"\*([^*]+)\*", r"<i>\1</i>", block.replace("&", "&amp;")))


def _flowables(block: str) -> Iterator[Flowable]:
    if block.startswith("# "):
        yield Spacer(1, 8 * mm)
        yield Paragraph(block[2:], TITLE)
        yield HRFlowable(width="30%", spaceBefore=8, spaceAfter=8, color="black", thickness=0.6)
    elif block.startswith("## "):
        yield Paragraph(block[3:], HEADING)
    elif block.startswith("- "):
        yield Paragraph(block[2:], ITEM, bulletText="–")  # a bullet is extracted as a control code
    elif block.startswith("<i>"):
        yield Paragraph(block, SUBTITLE)
        yield Spacer(1, 6 * mm)
    else:
        yield Paragraph(block, BODY)


if __name__ == "__main__":
    main()
