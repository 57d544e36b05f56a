"""Makes thirty documents over all formats by a dozen programs, with what stands in them, to count how they are read.

    python benchmarks/make_books.py NOVELS OUT

NOVELS is a folder of plain texts: five stay as they are, the other documents have the first chapters of one of them.
LibreOffice (soffice), TeX (pdflatex), a browser (chromium), pandoc, and the Python packages ebooklib, markdown,
weasyprint and fpdf2 make them. Beside each file stands FILE.json with its chapters and its paragraphs in order.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from make_pdfs import SPECIAL, run

CHAPTERS, WORDS = 5, 700  # of a made document, and of each of its chapters at most
HEADINGS = {  # lines that begin a chapter of a novel, where its own table of contents does not count
    "emma": r"CHAPTER [IVXL]+",
    "pride-and-prejudice": r"Chapter \d+",
    "the-adventures-of-sherlock-holmes": r"(?:ADVENTURE )?[IVX]+\. .+",
    "the-scarlet-letter": r"[IVX]+\. .+",
    "treasure-island": r"\d+\n\n.+",
}


@dataclass(frozen=True, slots=True)
class Book:
    """A text in chapters, each of which is a title and its paragraphs."""

    name: str
    chapters: tuple[tuple[str, tuple[str, ...]], ...]

    def written_beside(self, path: Path) -> None:
        """Write what is known: of slides, the programs make two of the title."""
        titles = [self.name] * 2 if path.suffix == ".pptx" else []
        known = {
            "chapters": titles + [title for title, _ in self.chapters],
            "paragraphs": [each for _, paragraphs in self.chapters for each in paragraphs],
        }
        path.with_name(f"{path.name}.json").write_text(json.dumps(known, indent=1), "utf-8")


def book_of(path: Path) -> Book:
    """A novel, taken apart at the lines that this script knows to be headings."""
    text = path.read_text("utf-8").replace("\r\n", "\n")
    parts = re.split(rf"^({HEADINGS[path.stem]})$(?=\n\n)", text, flags=re.MULTILINE)
    titles = [" ".join(title.split()) for title in parts[1::2]]
    told = [tuple(_paragraphs(part)) for part in parts[2::2]]
    return Book(path.stem, tuple(zip(titles, told, strict=True)))


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if re.search(r"\w", part)]


def beginning(book: Book) -> Book:
    """The first paragraphs of the first chapters; titles lose the number that stands alone above them."""
    short = []
    for title, paragraphs in book.chapters[:CHAPTERS]:
        kept, words = [], 0
        for each in paragraphs:
            words += len(each.split())
            if words > WORDS:
                break
            kept.append(each)
        short.append((re.sub(r"^\d+ ", "", title), tuple(kept)))
    return replace(book, chapters=tuple(short))


# Pages of HTML, from which most programs convert


def page_of(book: Book, style: str = "") -> str:
    parts = [
        f"<h2>{html.escape(title)}</h2>\n" + "\n".join(f"<p>{html.escape(each)}</p>" for each in paragraphs)
        for title, paragraphs in book.chapters
    ]
    head = f'<meta charset="utf-8"><title>{book.name}</title><style>{style}</style>'
    body = f"<h1>{book.name}</h1>\n" + "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>'


COLUMNS = "body { columns: 2; text-align: justify; hyphens: auto; font: 10pt serif } h1 { column-span: all }"


def by_pandoc(book: Book, out: Path, *options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(page_of(book), "utf-8")
        run("pandoc", str(page), "--standalone", *options, "-o", str(out))


def by_office(book: Book, out: Path, kind: str, by: str = "", style: str = "") -> None:
    """LibreOffice opens the page, or what pandoc made of it in the format ``by``, and saves it as ``kind``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{out.stem}.{by or 'html'}"
        if by:
            by_pandoc(book, source)
        else:
            source.write_text(page_of(book, style), "utf-8")
        reads = [] if by else ["--infilter=HTML (StarWriter)"]
        run("soffice", "--headless", *reads, "--convert-to", kind, "--outdir", folder, str(source))
        shutil.move(source.with_suffix(out.suffix), out)


def by_browser(book: Book, out: Path, style: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(page_of(book, style), "utf-8")
        run("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={out}", page.as_uri())


def by_weasyprint(book: Book, out: Path) -> None:
    import_module("weasyprint").HTML(string=page_of(book)).write_pdf(out)


def by_python_markdown(book: Book, out: Path) -> None:
    convert = import_module("markdown").markdown
    parts = [f"# {book.name}", *(f"## {title}\n\n" + "\n\n".join(told) for title, told in book.chapters)]
    body = convert("\n\n".join(parts))
    out.write_text(f"<html><body>{body}</body></html>", "utf-8")


# Programs that are told of chapters and paragraphs


def by_tex(book: Book, out: Path, packages: str = "", options: str = "") -> None:
    def escaped(text: str) -> str:
        return "".join(SPECIAL.get(char, char) for char in text)

    parts = [
        rf"\chapter{{{escaped(title)}}}" + "\n\n" + "\n\n".join(map(escaped, told))
        for title, told in book.chapters
    ]
    body = "\n\n".join(parts)
    text = (
        rf"\documentclass[{options}]{{book}}\usepackage[utf8]{{inputenc}}\usepackage[T1]{{fontenc}}{packages}"
        rf"\begin{{document}}{body}\end{{document}}"
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.tex"
        source.write_text(text, "utf-8")
        for _ in range(2):  # the outline is known after the first
            run("pdflatex", "-interaction=batchmode", f"-output-directory={folder}", str(source))
        shutil.move(source.with_suffix(".pdf"), out)


def by_fpdf(book: Book, out: Path) -> None:
    pdf = import_module("fpdf").FPDF()
    for title, told in book.chapters:
        pdf.add_page()
        pdf.start_section(title)
        pdf.set_font("times", size=16)
        pdf.multi_cell(0, 10, _latin(title), new_x="LMARGIN", new_y="NEXT")
        pdf.set_font("times", size=11)
        for each in told:
            pdf.multi_cell(0, 5, _latin(each), new_x="LMARGIN", new_y="NEXT")
    pdf.output(str(out))


def _latin(text: str) -> str:
    return text.encode("latin-1", "ignore").decode("latin-1")


def by_ebooklib(book: Book, out: Path) -> None:
    epub = import_module("ebooklib.epub")
    made, files = epub.EpubBook(), []
    made.set_identifier(book.name)
    made.set_title(book.name)
    for number, (title, told) in enumerate(book.chapters):
        each = epub.EpubHtml(title=title, file_name=f"part{number}.xhtml")
        each.content = f"<h3>{html.escape(title)}</h3>" + "".join(f"<p>{html.escape(p)}</p>" for p in told)
        made.add_item(each)
        files.append(each)
    made.toc, made.spine = tuple(files), ["nav", *files]
    made.add_item(epub.EpubNcx())
    made.add_item(epub.EpubNav())
    epub.write_epub(str(out), made)


HYPERREF = r"\usepackage[hidelinks]{hyperref}"
MAKERS: Mapping[str, Callable[[Book, Path], None]] = {
    "pandoc.md": partial(by_pandoc),
    "pandoc-setext.md": lambda book, out: by_pandoc(book, out, "--markdown-headings=setext"),
    "pandoc.html": lambda book, out: by_pandoc(book, out, "--toc"),
    "libreoffice.html": lambda book, out: by_office(book, out, "html", "docx"),
    "python-markdown.html": by_python_markdown,
    "pandoc-3.epub": lambda book, out: by_pandoc(book, out, "--split-level=2"),
    "pandoc-2.epub": lambda book, out: by_pandoc(book, out, "-t", "epub2"),
    "libreoffice.epub": lambda book, out: by_office(book, out, "epub", "odt"),
    "ebooklib.epub": by_ebooklib,
    "pandoc.docx": partial(by_pandoc),
    "pandoc-toc.docx": lambda book, out: by_pandoc(book, out, "--toc", "--number-sections"),
    "libreoffice.docx": lambda book, out: by_office(book, out, "docx", "odt"),
    "pandoc.odt": partial(by_pandoc),
    "libreoffice.odt": lambda book, out: by_office(book, out, "odt", "docx"),
    "pandoc.pptx": lambda book, out: by_pandoc(book, out, "--slide-level=2"),
    "libreoffice.pptx": lambda book, out: by_office(book, out, "pptx", "pptx"),
    "libreoffice-outline.pdf": lambda book, out: by_office(book, out, "pdf", "odt"),
    "libreoffice-docx.pdf": lambda book, out: by_office(book, out, "pdf", "docx"),
    "tex-outline.pdf": lambda book, out: by_tex(book, out, HYPERREF),
    "tex-plain.pdf": lambda book, out: by_tex(book, out),
    "tex-columns.pdf": lambda book, out: by_tex(book, out, HYPERREF, "twocolumn"),
    "chromium.pdf": lambda book, out: by_browser(book, out),
    "chromium-columns.pdf": lambda book, out: by_browser(book, out, COLUMNS),
    "weasyprint.pdf": by_weasyprint,
    "fpdf.pdf": by_fpdf,
}


def main(novels: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    whole = [book_of(novels / f"{name}.txt") for name in HEADINGS]
    for book in whole:
        shutil.copy(novels / f"{book.name}.txt", out)
        book.written_beside(out / f"{book.name}.txt")
    for number, (name, make) in enumerate(MAKERS.items()):
        book, target = beginning(whole[number % len(whole)]), out.resolve() / name
        make(book, target)
        book.written_beside(target)
        print(name, flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
