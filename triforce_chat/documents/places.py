"""Where a passage stands in a document, as a reader would find it: by chapter and line instead of by section."""

from __future__ import annotations

from triforce_chat.documents.chapters import Chapter, chapter_at, chapters_of
from triforce_chat.documents.model import Document, Page


def located(document: Document, page: Page, start: int, end: int) -> str:
    """As "ch. IV, l. 12-14" for the characters [start, end) of a page; nothing where only the page's number tells.

    Lines are those of the file, counted from the chapter's heading.
    """
    if document.unit == "page":
        return ""
    chapter = chapter_at(chapters_of(document), (page.number, start))
    lines = _lines(document, chapter, page, start, end) if document.has_lines else ""
    return ", ".join(filter(None, (chapter.name if chapter else "", lines)))


def _lines(document: Document, chapter: Chapter | None, page: Page, start: int, end: int) -> str:
    if chapter is None and document.pages[0].number != 1:
        return ""  # the lines before are not there to be counted
    first_page, first_start = chapter.start if chapter else (1, 0)
    above = [each for each in document.pages if first_page <= each.number < page.number]
    texts = [each.text for each in above] + [page.text[:start]]
    texts[0] = texts[0][first_start:]
    return _range(1 + sum(text.count("\n") for text in texts), page.text[start:end].rstrip().count("\n"))


def _range(first: int, more: int) -> str:
    return f"l. {first}-{first + more}" if more else f"l. {first}"
