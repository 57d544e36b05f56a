"""Makes PDF files of novels by four programs and in twelve layouts, to compare readers of PDF on.

    python benchmarks/make_pdfs.py NOVELS OUT

NOVELS is a folder of plain texts. LibreOffice (soffice), TeX (pdflatex), a browser (chromium) and ReportLab set pages
of them: in one or two columns, with tables, lists, footnotes, headings, hyphenation, small type and several fonts.
Beside each file stands its text, in the order in which it is to be read.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WORDS = 1_500  # of a document
NOTE_EVERY, LIST_EVERY, TABLE_EVERY = 4, 5, 6  # paragraphs
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}", "—": "---", "–": "--", "’": "'", "‘": "`"}
SPECIAL |= {"“": "``", "”": "''", "…": r"\ldots{}", **{each: rf"\{each}" for each in "&%$#_{}"}}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a document looks."""

    columns: int = 1
    font: str = "serif"  # or sans, mono
    size: int = 11  # points
    justified: bool = True
    tables: bool = False
    lists: bool = False
    notes: bool = False


LAYOUTS = {
    "plain": Layout(),
    "ragged": Layout(justified=False),
    "sans": Layout(font="sans"),
    "mono": Layout(font="mono", size=9),
    "small": Layout(size=8),
    "large": Layout(size=14, font="sans"),
    "columns": Layout(columns=2, size=10),
    "columns-sans": Layout(columns=2, font="sans", size=9),
    "tables": Layout(tables=True),
    "lists": Layout(lists=True),
    "notes": Layout(notes=True),
    "all": Layout(columns=2, size=9, tables=True, lists=True, notes=True),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document: a heading, a paragraph, an item of a list, a row of a table, or a note below the page."""

    kind: str
    cells: tuple[str, ...]


def pieces(paragraphs: list[str], layout: Layout) -> list[Piece]:
    """The document as its parts: what a layout has besides paragraphs is made of paragraphs."""
    found, words = [Piece("heading", ("The first office of difficult affairs",))], 0
    for number, text in enumerate(paragraphs):
        words += len(text.split())
        if words > WORDS:
            break
        if layout.tables and number % TABLE_EVERY == TABLE_EVERY - 1:
            found += [Piece("row", tuple(row)) for row in rows(text)]
        elif layout.lists and number % LIST_EVERY == LIST_EVERY - 1:
            found += [Piece("item", (part,)) for part in re.split(r"(?<=[.;!?]) ", text) if part]
        elif layout.notes and number % NOTE_EVERY == NOTE_EVERY - 1:
            found.append(Piece("noted", (text, f"Remark {number}: {' '.join(text.split()[:9])}.")))
        else:
            found.append(Piece("paragraph", (text,)))
        if number % 12 == 11:
            found.append(Piece("heading", (f"Chapter {number // 12 + 2}, in which efforts suffice",)))
    return found


def rows(text: str) -> list[list[str]]:
    """Rows of three cells of a few words each."""
    parts = [" ".join(group) for group in zip(*[iter(text.split())] * 3, strict=False)]
    return [list(row) for row in zip(*[iter(parts)] * 3, strict=False)][:6]


def paragraphs_of(path: Path, start: float) -> list[str]:
    """The paragraphs of a novel from a share of its length on, without what stands outside of the story."""
    parts = [
        " ".join(part.replace("_", "").split()) for part in re.split(r"\n\s*\n", path.read_text("utf-8"))
    ]
    told = [part for part in parts if len(part) > 80]
    return told[int(start * len(told)) :]


# A browser


def page_of(found: list[Piece], layout: Layout) -> str:
    family = {"serif": "DejaVu Serif", "sans": "DejaVu Sans", "mono": "DejaVu Sans Mono"}[layout.font]
    style = f"font: {layout.size}pt '{family}'; columns: {layout.columns}; hyphens: auto; "
    style += "text-align: " + ("justify" if layout.justified else "left")
    body = "\n".join(_element(piece) for piece in found)
    for tag in ("ul", "table"):  # neighbours belong together
        body = body.replace(f"</{tag}>\n<{tag}>", "\n")
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><body style="{style}">{body}</body></html>'


def _element(piece: Piece) -> str:
    cells = [html.escape(cell) for cell in piece.cells]
    match piece.kind:
        case "heading":
            return f"<h2>{cells[0]}</h2>"
        case "item":
            return f"<ul><li>{cells[0]}</li></ul>"
        case "row":
            return f"<table><tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr></table>"
        case "noted":
            return f"<p>{cells[0]}<sup>*</sup></p><p><small>* {cells[1]}</small></p>"
    return f"<p>{cells[0]}</p>"


def by_browser(found: list[Piece], layout: Layout, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(page_of(found, layout), "utf-8")
        run("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={out}", page.as_uri())


# TeX


def tex_of(found: list[Piece], layout: Layout) -> str:
    family = {"serif": "rm", "sans": "sf", "mono": "tt"}[layout.font]
    lines = [
        rf"\documentclass[{max(10, min(layout.size, 12))}pt{',twocolumn' * (layout.columns > 1)}]{{article}}",
        r"\usepackage[utf8]{inputenc}",
        rf"\renewcommand{{\familydefault}}{{\{family}default}}",
        r"\begin{document}",
        "" if layout.justified else r"\raggedright",
        r"\footnotesize" if layout.size < 10 else "",
        *(_command(piece) for piece in found),
        r"\end{document}",
    ]
    text = "\n\n".join(lines)
    for name in (r"itemize", r"tabular"):
        opening = r"\begin{itemize}" if name == "itemize" else r"\begin{tabular}{lll}"
        text = text.replace(rf"\end{{{name}}}" + "\n\n" + opening, "")
    return text


def _command(piece: Piece) -> str:
    cells = ["".join(SPECIAL.get(char, char) for char in cell) for cell in piece.cells]
    match piece.kind:
        case "heading":
            return rf"\section{{{cells[0]}}}"
        case "item":
            return rf"\begin{{itemize}}\item {cells[0]}\end{{itemize}}"
        case "row":
            return r"\begin{tabular}{lll}" + " & ".join(cells) + r" \\ \end{tabular}"
        case "noted":
            return rf"{cells[0]}\footnote{{{cells[1]}}}"
    return cells[0]


def by_tex(found: list[Piece], layout: Layout, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.tex").write_text(tex_of(found, layout), "utf-8")
        run("pdflatex", "-interaction=batchmode", f"-output-directory={folder}", f"{folder}/page.tex")
        out.write_bytes((Path(folder) / "page.pdf").read_bytes())


# LibreOffice


def fodt_of(found: list[Piece], layout: Layout) -> str:
    family = {"serif": "DejaVu Serif", "sans": "DejaVu Sans", "mono": "DejaVu Sans Mono"}[layout.font]
    names = ("office", "style", "text", "table", "fo")
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in names[:4]
    )
    spaces += ' xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"'
    text = (
        f'<style:text-properties style:font-name="F" fo:font-size="{layout.size}pt" fo:language="en" '
        'fo:country="GB" fo:hyphenate="true" fo:hyphenation-remain-char-count="2" '
        'fo:hyphenation-push-char-count="2"/>'
    )
    align = "justify" if layout.justified else "start"
    styles = (
        f'<office:font-face-decls><style:font-face style:name="F" svg:font-family="{family}" '
        'xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"/></office:font-face-decls>'
        '<office:automatic-styles><style:style style:name="P" style:family="paragraph">'
        f'<style:paragraph-properties fo:text-align="{align}" fo:margin-bottom="2mm"/>{text}</style:style>'
        '<style:style style:name="S" style:family="section"><style:section-properties>'
        f'<style:columns fo:column-count="{layout.columns}" fo:column-gap="6mm"/>'
        "</style:section-properties></style:style></office:automatic-styles>"
    )
    body = "\n".join(_node(piece, number) for number, piece in enumerate(found))
    body = body.replace("</text:list>\n<text:list>", "\n")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document {spaces} office:version="1.3" '
        f'office:mimetype="application/vnd.oasis.opendocument.text">{styles}<office:body><office:text>'
        f'<text:section text:style-name="S" text:name="A">{body}</text:section>'
        "</office:text></office:body></office:document>"
    )


def _node(piece: Piece, number: int) -> str:
    paragraphs = [f'<text:p text:style-name="P">{html.escape(cell)}</text:p>' for cell in piece.cells]
    match piece.kind:
        case "heading":
            return f'<text:h text:outline-level="1">{html.escape(piece.cells[0])}</text:h>'
        case "item":
            return f"<text:list><text:list-item>{paragraphs[0]}</text:list-item></text:list>"
        case "row":
            cells = "".join(f"<table:table-cell>{each}</table:table-cell>" for each in paragraphs)
            columns = f'<table:table-column table:number-columns-repeated="{len(paragraphs)}"/>'
            row = f"{columns}<table:table-row>{cells}</table:table-row>"
            return f'<table:table table:name="T{number}">{row}</table:table>'
        case "noted":
            note = (
                '<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation>'
                f"<text:note-body>{paragraphs[1]}</text:note-body></text:note>"
            )
            return paragraphs[0].replace("</text:p>", f"{note}</text:p>")
    return paragraphs[0]


def by_office(found: list[Piece], layout: Layout, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / f"{out.stem}.fodt"
        page.write_text(fodt_of(found, layout), "utf-8")
        run("soffice", "--headless", "--convert-to", "pdf", "--outdir", str(out.parent), str(page))


# ReportLab


def by_reportlab(found: list[Piece], layout: Layout, out: Path) -> None:
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.platypus import BaseDocTemplate, Flowable, Frame, PageTemplate, Paragraph, Table

    font = {"serif": "Times-Roman", "sans": "Helvetica", "mono": "Courier"}[layout.font]
    style = ParagraphStyle(
        "text", fontName=font, fontSize=layout.size, leading=1.3 * layout.size, spaceAfter=6
    )
    style.alignment = 4 if layout.justified else 0
    title = ParagraphStyle("title", style, fontSize=1.4 * layout.size, leading=1.8 * layout.size, alignment=0)
    note = ParagraphStyle("note", style, fontSize=0.7 * layout.size)

    def flowing(piece: Piece) -> list[Flowable]:
        cells = [html.escape(cell) for cell in piece.cells]
        match piece.kind:
            case "heading":
                return [Paragraph(cells[0], title)]
            case "item":
                return [Paragraph(cells[0], style, bulletText="•")]
            case "row":
                return [Table([[Paragraph(cell, style) for cell in cells]])]
            case "noted":
                return [Paragraph(f"{cells[0]}<super>*</super>", style), Paragraph(f"* {cells[1]}", note)]
        return [Paragraph(cells[0], style)]

    width, margin = A4[0] - 100, 50
    each = width / layout.columns
    frames = [Frame(margin + n * each, margin, each, A4[1] - 2 * margin) for n in range(layout.columns)]
    made = BaseDocTemplate(str(out), pagesize=A4, pageTemplates=[PageTemplate(frames=frames)])
    made.build([part for piece in found for part in flowing(piece)])


PROGRAMS: dict[str, Callable[[list[Piece], Layout, Path], None]] = {
    "LibreOffice": by_office,
    "TeX": by_tex,
    "Chromium": by_browser,
    "ReportLab": by_reportlab,
}


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(novels: Path, out: Path) -> None:
    texts = sorted(novels.glob("*.txt"))
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        for at, (program, make) in enumerate(PROGRAMS.items()):
            start = (number * len(PROGRAMS) + at) / (len(LAYOUTS) * len(PROGRAMS)) * 0.9
            told = paragraphs_of(texts[(number + at) % len(texts)], start)
            target = out.resolve() / f"{program.lower()}-{name}.pdf"
            found = pieces(told, layout)
            make(found, layout, target)
            target.with_suffix(".txt").write_text(
                "\n".join(" ".join(piece.cells) for piece in found), "utf-8"
            )
            print(target.name, flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
