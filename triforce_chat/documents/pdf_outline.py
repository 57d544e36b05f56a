"""The outline of a PDF file as headings on its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pypdf import PdfReader

from triforce_chat.documents.model import Heading

MOST = 5_000  # entries
DEEPEST = 6  # levels


def outline(reader: PdfReader, texts: Sequence[str]) -> list[Heading]:
    """The entries whose pages exist, in the order of the pages; none where they run backwards."""
    found: list[Heading] = []
    for title, level, page in _entries(reader, reader.outline, 1):
        if len(found) == MOST:
            break
        if 0 <= page < len(texts):
            found.append(Heading(title, level, page + 1, _start(title, texts[page])))
    places = [(heading.page, heading.start) for heading in found]
    return (
        sorted(found, key=lambda heading: (heading.page, heading.start)) if places[:1] <= places[-1:] else []
    )


def _entries(reader: PdfReader, items: Sequence[Any], level: int) -> Iterator[tuple[str, int, int]]:
    for item in items:
        if isinstance(item, list):
            if level < DEEPEST:
                yield from _entries(reader, item, level + 1)
            continue
        page = reader.get_destination_page_number(item)
        if page is not None:
            yield " ".join(str(item.title).split()), level, page


def _start(title: str, text: str) -> int:
    """Where a line of the page begins with the title, also after a number and over two lines; else its top."""
    words = r"\W+".join(map(re.escape, re.findall(r"\w+", title)))
    match = re.search(rf"^[\W\d]*{words}", text, re.I | re.M) if words else None
    return match.start() if match else 0
