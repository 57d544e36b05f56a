"""Pages, chapters and search results of the documents, for /pages, /chapters, /chapter and /find."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from triforce_chat.chat.events import Place
from triforce_chat.documents import Document, parse_pages
from triforce_chat.documents.chapters import Chapter, chapters_of, chosen, only
from triforce_chat.documents.search import Hit, find, pattern
from triforce_chat.errors import UsageError
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.clean import clean
from triforce_chat.ui.tables import show_table
from triforce_chat.ui.terminal import Screen

MAX_HITS = 20  # sentences that /find shows
MAX_SENTENCE = 300  # characters


def show_pages(documents: Sequence[Document], pages: str, screen: Screen) -> None:
    """Show pages as the model reads them. Raises UsageError if no document has any of ``pages``."""
    ranges = parse_pages(pages)
    found = [
        (document, page)
        for document in documents
        for page in document.pages
        if any(page.number in each for each in ranges)
    ]
    if not found:
        raise UsageError(f"no document has {pages}; /pages lists what there is")
    for document, page in found:
        place = Place(document.title, document.unit, page.number)
        screen.notes.print(Text(source_lines.join_places([place]), "bold"))
        screen.note(page.text.strip() or "(no text)")


def show_chapters(documents: Sequence[Document], screen: Screen) -> None:
    """List the chapters of each document, with the numbers that name them and their pages."""
    for document in documents:
        chapters = chapters_of(document)
        screen.notes.print(
            Text(f"{clean(document.title)}: {formatting.count(len(chapters), 'chapter')}", "bold")
        )
        rows = [[str(each.number or ""), clean(each.title), _first_page(document, each)] for each in chapters]
        if rows:
            show_table(("", "", ""), rows, screen)


def show_chapter(documents: Sequence[Document], wanted: str, screen: Screen) -> None:
    """Show chapters as the model reads them. Raises UsageError if no document has them."""
    refusals = []
    for document in documents:
        try:
            found = chosen(document, wanted)
        except UsageError as error:
            refusals.append(error)
            continue
        for chapter in found:
            screen.notes.print(Text(f"{clean(document.title)}, {clean(chapter.title)}", "bold"))
            screen.note(only(document, [chapter]).text.strip() or "(no text)")
    if len(refusals) == len(documents):
        raise refusals[0]


def _first_page(document: Document, chapter: Chapter) -> str:
    return source_lines.page_label("page", chapter.start[0]) if document.unit == "page" else ""


def show_hits(documents: Sequence[Document], words: str, screen: Screen) -> None:
    """Show the sentences that contain ``words``, and the number of hits."""
    wanted = pattern(words)
    hits = list(find(documents, wanted))
    for hit in hits[:MAX_HITS]:
        screen.notes.print(_hit_line(hit, wanted))
    total = formatting.count(sum(hit.count for hit in hits), "hit")
    screen.note(f"{total}, the first {MAX_HITS} sentences shown" if len(hits) > MAX_HITS else total)


def _hit_line(hit: Hit, wanted: re.Pattern[str]) -> Text:
    """The sentence with the words emphasized; a long sentence is cut around the first of them."""
    sentence = clean(hit.sentence)
    first = wanted.search(sentence)
    start = max(0, first.start() - MAX_SENTENCE // 2) if first and len(sentence) > MAX_SENTENCE else 0
    shown = formatting.shorten(sentence[start:], MAX_SENTENCE)
    line = Text(f"{'…' if start else ''}{shown}")
    line.highlight_regex(wanted, "bold reverse")
    place = Place(hit.document.title, hit.document.unit, hit.page, where=hit.where)
    return Text.assemble((f"{source_lines.join_places([place])}: ", "dim"), line)
