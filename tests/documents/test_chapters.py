"""Chapters: found in every format, called by number or name, cut out of the text; and places told by them."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.pdfgen.canvas import Canvas
from support.documents import opened
from support.mutations import zipped

from triforce_chat.documents import Document, Heading, Page, read
from triforce_chat.documents.chapters import chapters_of, chosen, numeral, only, until
from triforce_chat.documents.headings import page_headings, text_headings
from triforce_chat.documents.places import located
from triforce_chat.documents.search import find, pattern
from triforce_chat.errors import UsageError

BODY = "Nobody on the quay had expected the ship, and nobody had seen it come.\n" * 8
NOVEL = (
    "A Novel\n\nCONTENTS\n\nPART ONE\n\nCHAPTER I. The Quay\n\nCHAPTER II. The Ship\n\n\n"
    f"PREFACE\n\n{BODY}\nPART ONE\n\nCHAPTER I\n\nThe Quay\n\n{BODY}\nCHAPTER II\n\nThe Ship\n\n{BODY}needle\n"
)
HTML = f"<h1>Book</h1><h2>One</h2><p>{BODY}</p><h3>Inner</h3><p>{BODY}</p><h2>Two</h2><p>{BODY}</p>"


def titles(document: Document) -> list[str]:
    return [chapter.title for chapter in chapters_of(document)]


# Found


def test_a_novel() -> None:
    chapters = chapters_of(opened(NOVEL.encode()))
    assert [(each.number, each.name, each.title) for each in chapters] == [
        (0, "“PREFACE”", "PREFACE"),
        (1, "ch. I", "CHAPTER I. The Quay"),
        (2, "ch. II", "CHAPTER II. The Ship"),
    ]


def test_numbers_that_begin_anew_are_counted_through() -> None:
    volumes = "".join(f"VOLUME {n}\n\nCHAPTER I\n\n{BODY}\nCHAPTER II\n\n{BODY}\n" for n in ("I", "II"))
    assert [(each.number, each.name) for each in chapters_of(opened(volumes.encode()))] == [
        (n, f"ch. {n}") for n in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize(
    "headings",
    [
        ("I.", "II.", "III."),
        ("1", "2", "3"),
        ("[ 1 ]", "[ 2 ]", "[ 3 ]"),
        ("I. The Mail", "II. The Night Shadows", "III. A Sight"),
        ("CHAPTER TWENTY", "CHAPTER TWENTY-ONE", "CHAPTER FORTY-TWO"),
        ("ГЛАВА I", "ГЛАВА II", "ГЛАВА III"),
    ],
)
def test_headings_of_texts(headings: tuple[str, ...]) -> None:
    text = "A Book\n\n" + "".join(f"{each}\n\n{BODY}\n" for each in headings)
    assert titles(opened(text.encode())) == list(headings)


def test_a_paragraph_of_one_line_is_no_title() -> None:
    text = f"CHAPTER I\n\n“What?”\n\n{BODY}\nCHAPTER II\n\nNo, he said.\n\n{BODY}"
    assert titles(opened(text.encode())) == ["CHAPTER I", "CHAPTER II"]


def test_html_and_markdown_headings(tmp_path: Path) -> None:
    assert titles(opened(f"<html>{HTML}".encode())) == ["One", "Two"]
    path = tmp_path / "a.md"
    path.write_text("# Book\n\nx\n\n## One\n\na\n\n### Inner\n\nb\n\nTwo\n---\n\nc\n")
    assert titles(read(str(path))) == ["One", "Two"]


def test_pdf_outlines() -> None:
    def draw(canvas: Canvas) -> None:
        for number, title in enumerate(("1 Quay", "2 Ship", "3 Sea")):
            canvas.drawString(72, 720, "the page before")
            canvas.drawString(72, 700, title)
            canvas.bookmarkPage(str(number))
            canvas.addOutlineEntry(title, str(number), 0)
            canvas.bookmarkPage(f"{number}a")
            canvas.addOutlineEntry("a part", f"{number}a", 1)
            canvas.showPage()

    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    draw(canvas)
    canvas.save()
    chapters = chapters_of(opened(buffer.getvalue()))
    assert [(each.name, each.title, each.start) for each in chapters] == [
        ("ch. 1", "1 Quay", (1, 16)),
        ("ch. 2", "2 Ship", (2, 16)),
        ("ch. 3", "3 Sea", (3, 16)),
    ]


def test_a_pdf_without_an_outline() -> None:
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    for number in ("I", "II", "III"):
        for row, line in enumerate((f"CHAPTER {number}", *BODY.splitlines())):
            canvas.drawString(72, 720 - 15 * row, line)
        canvas.showPage()
    canvas.save()
    assert titles(opened(buffer.getvalue())) == ["CHAPTER I", "CHAPTER II", "CHAPTER III"]


def test_names_below_the_numbers_on_pages() -> None:
    names: tuple[list[str], ...] = (["The Ship"], ["The Keeper of the", "Lamp"], [], ["Nobody came."])
    chapters = [[f"Chapter {n}", *name, *BODY.splitlines()] for n, name in enumerate(names, 1)]
    found = page_headings(["".join(f"{line}\n" for lines in chapters for line in lines)])
    assert [each.title for each in found] == [
        *("Chapter 1. The Ship", "Chapter 2. The Keeper of the Lamp", "Chapter 3", "Chapter 4")
    ]


@pytest.mark.parametrize("mark", ["*", "=", "-"])
def test_headings_with_a_line_below(mark: str) -> None:
    names = ("The Lamp", "1. Oil", "2. Wicks", "3. " + "Glass and its makers " * 5)
    sections = (f"{name.strip()}\n{mark * len(name.strip())}\n\nParts\n~~~~~\n\n{BODY}\n" for name in names)
    found = text_headings(["".join(sections)])
    assert [(each.title, each.level) for each in found] == [
        pair for name in names for pair in ((name.strip(), 1), ("Parts", 2))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "words\nof a paragraph\n--------------\n",
        "Name   Value\n------------\n",
        "Oil\n----------\n",
        "* * *\n=====\n",
        "Oil\n===",
    ],
)
def test_lines_below_what_is_no_heading(text: str) -> None:
    found = text_headings([f"{BODY}\n\n{text}\n{BODY}"])
    assert bool(found) == (text == "Oil\n===")


def test_chapters_of_a_text_are_more_than_a_line_below_its_title() -> None:
    text = "The Lamp\n========\n\n" + "".join(f"CHAPTER {n}\n\n{BODY}\n\n" for n in ("I", "II"))
    assert [each.title for each in text_headings([text])] == ["CHAPTER I", "CHAPTER II"]


def test_appendices() -> None:
    names = ("Chapter\u00a01. Oil", "Chapter 2. Wicks", "Appendix\u00a0A. Glass")
    text = "".join(f"{name}\n\n{BODY}\n\n" for name in names) + f"Appendix A tells of glass.\n\n{BODY}"
    assert [each.title for each in text_headings([text])] == [" ".join(name.split()) for name in names]


def test_numbered_sections_of_pages() -> None:
    """With a table of contents before them, and a list within the second."""
    names = ("1. Oil and fat", "2. Wicks", "3. Glass (old)", "A  Makers", "B  Prices")
    contents = "".join(f"{name}\n" for name in names)
    items = "1. Cut it.\n3. Burn\n4 Sell\n"
    pages = [contents, *(f"{name}\n{BODY}\n{items if at == 1 else ''}" for at, name in enumerate(names))]
    found = page_headings(pages)
    assert [(each.title, each.page) for each in found] == [
        (" ".join(name.split()), at) for at, name in enumerate(names, 2)
    ]


def test_a_numbered_list_has_no_sections() -> None:
    short = "".join(f"{n}. Oil\nfor a lamp\n" for n in range(1, 9))
    two = "".join(f"{n}. Oil\n{BODY}\n" for n in (1, 2))
    assert page_headings([short]) == page_headings([two]) == []


def test_what_stands_before_and_behind_parts_hides_no_chapters(tmp_path: Path) -> None:
    part = "# Part {}\n\nx\n\n## Chapter 1\n\nx\n\n## Chapter 2\n\nx\n\n## Chapter 3\n\nx\n\n"
    path = tmp_path / "a.md"
    path.write_text(f"# About\n\nx\n\n# Thanks\n\nx\n\n{part.format(1)}{part.format(2)}# More Books\n\nx\n")
    assert titles(read(str(path))) == ["Chapter 1", "Chapter 2", "Chapter 3"] * 2


def test_a_name_in_quotation_marks() -> None:
    text = f"27\n\n“Pieces of Eight”\n\n{BODY}\n\n28\n\nIn the Camp\n\n{BODY}"
    assert [each.title for each in text_headings([text])] == ["27. “Pieces of Eight”", "28. In the Camp"]


def test_a_title_that_stands_twice_is_no_chapter() -> None:
    page = f"<h1>The Book</h1><h1>The Book</h1><h2>Quay</h2><p>{BODY}</p><h2>Ship</h2><p>{BODY}</p>"
    assert titles(opened(f"<html><body>{page}</body></html>".encode())) == ["Quay", "Ship"]


def book(contents: str, kind: str) -> bytes:
    chapter = f"<h1>Ornament</h1><p>{BODY}</p><h1 id='b'>The Ship</h1><p>{BODY}</p>"
    package = (
        f'<package><manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>'
        f'<item id="t" href="toc.x" {kind}/></manifest><spine><itemref idref="a"/></spine></package>'
    )
    container = '<container><rootfiles><rootfile full-path="O/b.opf"/></rootfiles></container>'
    members = {
        "META-INF/container.xml": container,
        "O/b.opf": package,
        "O/a.xhtml": chapter,
        "O/toc.x": contents,
    }
    return zipped([(name, text.encode()) for name, text in members.items()])


NAV = '<nav epub:type="toc"><ol><li><a href="a.xhtml">I The Quay</a><li><a href="a.xhtml#b">The Ship</a></ol></nav>'
NCX = "<navMap>{}</navMap>".format(
    "".join(
        f"<navPoint><navLabel><text>{title}</text></navLabel><content src='{target}'/></navPoint>"
        for title, target in (("I The Quay", "a.xhtml"), ("The Ship", "a.xhtml#b"))
    )
)


@pytest.mark.parametrize(
    "data",
    [
        book(NAV, 'properties="nav" media-type="application/xhtml+xml"'),
        book(NCX, 'media-type="application/x-dtbncx+xml"'),
    ],
)
def test_the_table_of_contents_of_an_epub(data: bytes) -> None:
    document = opened(data)
    assert titles(document) == ["I The Quay", "The Ship"]
    assert only(document, [chapters_of(document)[1]]).text.startswith("The Ship\n")


def test_an_epub_without_a_table_of_contents() -> None:
    assert titles(opened(book("", 'media-type="text/css"'))) == ["Ornament", "The Ship"]


# Called


@pytest.mark.parametrize("wanted", ["2", "II", "ii", "chapter 2", "Chapter II", "ch. 2", "the ship"])
def test_a_chapter_is_called_by_number_or_name(wanted: str) -> None:
    assert [each.title for each in chosen(opened(NOVEL.encode()), wanted)] == ["CHAPTER II. The Ship"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("3", "has no chapter 3; it has 1-2"),
        ("4-5", "has no chapter"),
        ("whale", "no chapter called 'whale'"),
        ("the", "several"),
    ],
)
def test_what_is_no_chapter(wanted: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen(opened(NOVEL.encode()), wanted)
    with pytest.raises(UsageError, match="has no chapters"):
        chosen(opened(b"words"), wanted)


@given(st.integers(1, 399))
def test_roman_numbers(number: int) -> None:
    digits = (
        ("C", 100),
        ("XC", 90),
        ("L", 50),
        ("XL", 40),
        ("X", 10),
        ("IX", 9),
        ("V", 5),
        ("IV", 4),
        ("I", 1),
    )
    written, rest = "", number
    for digit, value in digits:
        while rest >= value:
            written, rest = written + digit, rest - value
    assert numeral(written) == numeral(str(number)) == number


# Cut out


def test_chapters_are_cut_out() -> None:
    document = opened(NOVEL.encode())
    second = only(document, chosen(document, "2"))
    assert second.text.startswith("CHAPTER II\n")
    assert second.text.endswith("needle\n")
    assert titles(second) == ["CHAPTER II. The Ship"]
    both = only(document, chosen(document, "1-2"))
    assert both.text.startswith("CHAPTER I\n")
    assert [each.title for each in both.headings] == ["CHAPTER I. The Quay", "CHAPTER II. The Ship"]
    assert until(document, "1").text == document.text[: document.text.rindex("CHAPTER II")]
    assert "needle" not in until(document, "chapter I").text


def test_until_a_page() -> None:
    document = Document("B", "b", tuple(Page(n, f"page {n}") for n in (1, 2, 3)))
    assert until(document, "2").text == "page 1page 2"
    with pytest.raises(UsageError, match="out of range"):
        until(document, "4")


@given(st.lists(st.text("ab\n", min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_all_chapters_together_are_the_text_behind_the_first_heading(
    texts: list[str], data: st.DataObject
) -> None:
    pages = tuple(Page(number, text) for number, text in enumerate(texts, 1))
    places = st.integers(1, len(pages)).flatmap(
        lambda page: st.tuples(st.just(page), st.integers(0, len(texts[page - 1]) - 1))
    )
    starts = sorted(data.draw(st.sets(places, min_size=2, max_size=6)))
    headings = tuple(Heading(f"{n} x", 1, page, start) for n, (page, start) in enumerate(starts, 1))
    document = Document("B", "b", pages, "section", headings=headings)
    chapters = chapters_of(document)
    assert all(before.end == after.start for before, after in pairwise(chapters))
    page, start = starts[0]
    whole = "".join(texts[page - 1 :])[start:]
    parts = [
        only(document, [each]).text
        for each in chapters
        if whole.strip() and _has_words(document, each.start, each.end)
    ]
    assert "".join("".join(parts).split()) == "".join(whole.split())


def _has_words(document: Document, start: tuple[int, int], end: tuple[int, int] | None) -> bool:
    pieces = (
        page.text[start[1] * (page.number == start[0]) : end[1] if end and page.number == end[0] else None]
        for page in document.pages
        if page.number >= start[0] and (end is None or page.number <= end[0])
    )
    return any(piece.strip() for piece in pieces)


# Told


def test_places_in_a_text_are_chapters_and_lines() -> None:
    document = opened(NOVEL.encode())
    (hit,) = find([document], pattern("needle"))
    heading = document.text[document.text.rindex("CHAPTER II") :].split("\n")
    assert hit.where == f"ch. II, l. {1 + heading.index('needle')}"
    page = document.pages[-1]
    at = page.text.index("needle")
    assert located(document, page, at, at + 6) == f"ch. II, l. {1 + heading.index('needle')}"


def test_lines_of_a_text_without_chapters_are_those_of_the_file() -> None:
    document = opened(b"one\ntwo\nthree\nfour\n")
    assert located(document, document.pages[0], 4, 13) == "l. 2-3"
    rest = Document("B", "b", document.pages[1:] or (Page(2, "later"),), "section", has_lines=True)
    assert located(rest, rest.pages[0], 0, 5) == ""


def test_places_in_other_formats() -> None:
    html = opened(f"<html>{HTML}".encode())
    assert located(html, html.pages[-1], 6, 9) == "“Two”"
    assert located(Document("B", "b", (Page(3, "x"),)), Page(3, "x"), 0, 1) == ""
