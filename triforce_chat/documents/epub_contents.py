"""The table of contents of an EPUB: titles, their depth and where they lead."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote

from bs4 import BeautifulSoup, Tag

from triforce_chat.documents.model import Heading

MOST = 5_000  # entries
_LISTS = ("ol", "ul", "navpoint")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a table of contents: the member of the archive that it leads to, and the place in it, if any."""

    title: str
    depth: int
    member: str
    fragment: str


def entries(contents: BeautifulSoup, folder: str) -> list[Entry]:
    """The lines of a navigation document or of an NCX file in ``folder``."""
    points = contents.find_all("navpoint")
    if points:
        pairs = ((point.find("navlabel"), point.find("content"), point) for point in points)
        found = ((label, str(link.get("src", "")), point) for label, link, point in pairs if label and link)
    else:
        navs = contents.find_all("nav")
        chosen = next(
            (nav for nav in navs if "toc" in str(nav.get("epub:type", ""))), navs[0] if navs else None
        )
        links = chosen.find_all("a") if chosen else []
        found = ((link, str(link.get("href", "")), link) for link in links)
    return [_entry(label, target, node, folder) for label, target, node in islice(found, MOST)]


def _entry(label: Tag, target: str, node: Tag, folder: str) -> Entry:
    path, _, fragment = target.partition("#")
    depth = sum(parent.name in _LISTS for parent in islice(node.parents, 50)) + (node.name == "navpoint")
    member = posixpath.normpath(posixpath.join(folder, unquote(path)))
    return Entry(" ".join(label.get_text().split()), depth, member, fragment)


def placed(
    found: Sequence[Entry], sections: Mapping[str, Sequence[int]], texts: Sequence[str]
) -> tuple[Heading, ...]:
    """The entries as headings; ``sections`` has for each member the numbers of its texts (from 0)."""
    return tuple(_placed(found, sections, texts))


def _placed(
    found: Sequence[Entry], sections: Mapping[str, Sequence[int]], texts: Sequence[str]
) -> Iterator[Heading]:
    last = (0, 0)
    for entry in found:
        numbers = sections.get(entry.member)
        if not numbers or not entry.title:
            continue
        place = _place(entry.title, numbers, texts) if entry.fragment else None
        at, start = place or (numbers[0], 0)
        if (at, start) >= last:  # a table that runs backwards is none
            last = at, start
            yield Heading(entry.title, entry.depth, at + 1, start)


def _place(title: str, numbers: Sequence[int], texts: Sequence[str]) -> tuple[int, int] | None:
    """Where a line begins with the title."""
    words = r"\W+".join(map(re.escape, re.findall(r"\w+", title)))
    if not words:
        return None
    line = re.compile(rf"^\W*{words}", re.I | re.M)
    return next(((at, match.start()) for at in numbers if (match := line.search(texts[at]))), None)
