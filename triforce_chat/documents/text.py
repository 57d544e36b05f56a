"""Plain text and Markdown: cut into sections whose texts, joined, are the whole file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from triforce_chat.documents.encoding import decode
from triforce_chat.documents.headings import CHAPTER_BODY, heading_lines, placed_at, text_headings
from triforce_chat.documents.model import Heading, Parsed, check_length

BLOCK_LINES, BLOCK_CHARS = 500, 30_000
LONG_SECTION = 100_000  # characters; a section under a heading may be longer than a block
_ATX = re.compile(r" {0,3}#{1,3}[ \t]+\S")
_ATX_MARKS = re.compile(r" {0,3}(#{1,3})[ \t]")
_UNDERLINE = re.compile(r" {0,3}(=+|-{3,})[ \t]*\n?")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def parse_text(data: bytes) -> Parsed:
    """Chapters where headings tell them, else blocks; a text with form feeds has real pages."""
    decoded = decode(data)
    check_length(len(decoded.text))
    if "\f" in decoded.text.strip():
        pages = re.findall(r"[^\f]*\f|[^\f]+", decoded.text)
        return Parsed(pages, unit="page", notices=decoded.notices, headings=tuple(text_headings(pages)))
    parts = sections(decoded.text)
    return Parsed(parts, notices=decoded.notices, headings=tuple(text_headings(parts)), has_lines=True)


def parse_markdown(data: bytes) -> Parsed:
    """Markdown stays as it is written; headings of the first three ranks start sections."""
    decoded = decode(data)
    check_length(len(decoded.text))
    lines = _LINE.findall(decoded.text)
    headings = list(_markdown_headings(lines))
    title = _bare(lines[headings[0]]) if headings else ""
    parts = under(lines, headings)
    return Parsed(
        parts,
        title,
        notices=decoded.notices,
        headings=tuple(_ranked(lines, headings, parts)) or tuple(text_headings(parts)),
        has_lines=True,
    )


def _ranked(lines: Sequence[str], headings: Sequence[int], parts: Sequence[str]) -> list[Heading]:
    offsets = [0, *accumulate(map(len, lines))]
    return placed_at(((offsets[at], _rank(lines, at), _bare(lines[at])) for at in headings), parts)


def _rank(lines: Sequence[str], heading: int) -> int:
    marks = _ATX_MARKS.match(lines[heading])
    return len(marks[1]) if marks else 1 if lines[heading + 1].lstrip().startswith("=") else 2


def _bare(heading: str) -> str:
    return heading.strip(" \t\n#")


def sections(text: str) -> list[str]:
    """Cut plain text at chapter headings; what is then still too long is cut between paragraphs."""
    lines = _LINE.findall(text)
    chapters = cut(lines, heading_lines(lines), body=CHAPTER_BODY)
    if len(chapters) == 1:
        return blocks(text)
    return [part for one in chapters for part in (blocks(one) if len(one) > LONG_SECTION else [one])]


def under(lines: Sequence[str], headings: Iterable[int]) -> list[str]:
    """Sections of a text that marks its ``headings``; where they divide nothing, those of plain text."""
    parts = cut(lines, headings, body=1)
    return parts if len(parts) > 1 else sections("".join(lines))


def cut(lines: Sequence[str], headings: Iterable[int], body: int) -> list[str]:
    """Join ``lines`` into sections that start at ``headings`` (line indices, rising).

    A heading with fewer than ``body`` characters between it and the one before belongs to that one: so
    tables of contents stay whole, and a part's title stays with its first chapter.
    """
    starts, after = [0], 0
    for heading in headings:
        if sum(len(line.strip()) for line in lines[after:heading]) >= body:
            starts.append(heading)
        after = heading + 1
    return ["".join(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]


def blocks(text: str) -> list[str]:
    """Cut at the first paragraph's end after 500 lines or 30,000 characters; at twice that, anywhere."""
    found: list[list[str]] = [[]]
    size = 0
    for line in _LINE.findall(text):
        fullness = max(len(found[-1]) / BLOCK_LINES, size / BLOCK_CHARS)
        if fullness >= 2 or (fullness >= 1 and found[-1][-1].isspace() and not line.isspace()):
            found.append([])
            size = 0
        found[-1].append(line)
        size += len(line)
    return ["".join(block) for block in found]


def _markdown_headings(lines: Sequence[str]) -> Iterator[int]:
    fence = ""
    for index, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif not fence and (_ATX.match(line) or _is_underlined(lines, index)):
            yield index


def _is_underlined(lines: Sequence[str], index: int) -> bool:
    if index + 1 == len(lines) or not _UNDERLINE.fullmatch(lines[index + 1]):
        return False
    alone = index == 0 or not lines[index - 1].strip()
    return alone and lines[index].strip(" \t\n-=") != ""
