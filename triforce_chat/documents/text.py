"""Plain text and Markdown: cut into sections whose texts, joined, are the whole file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from triforce_chat.documents.encoding import decode
from triforce_chat.documents.model import Parsed, check_length

CHAPTER_BODY = 400  # characters; less between two headings is a table of contents
BLOCK_LINES, BLOCK_CHARS = 500, 30_000
LONG_SECTION = 100_000  # characters; a section under a heading may be longer than a block
_NUMBER = (
    r"(?:\d{1,3}|[IVXLC]{1,8}|(?i:(?:the )?(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|\w+teen|twent\w+|first|second|third|fourth|fifth|last)))"
)
_NOUN = (
    r"(?:CHAPTER|PART|BOOK|VOLUME|ACT|SCENE|CANTO|LETTER|STAVE|ADVENTURE|SECTION|CHAPITRE|KAPITEL|TEIL"
    r"|CAP[IÍ]TULO|CAPITOLO|ГЛАВА|ЧАСТЬ)"
)
_CHAPTER = re.compile(
    rf"{_NOUN}\s+{_NUMBER}\b.{{0,80}}"
    rf"|(?:{_NOUN.title()})\s+{_NUMBER}\b.{{0,80}}"
    r"|第[0-9一二三四五六七八九十百]+[章回部].{0,40}"
    r"|[IVXLC]{1,8}\. +[^a-z]{3,80}"
    r"|(?:PROLOGUE|EPILOGUE|PREFACE|INTRODUCTION|CONCLUSION|APPENDIX)\b.{0,40}"
)
_BARE_NUMBER = re.compile(r"(?:\d{1,3}|[IVXLC]{1,8})\.?")
_ATX = re.compile(r" {0,3}#{1,3}[ \t]+\S")
_UNDERLINE = re.compile(r" {0,3}(=+|-{3,})[ \t]*\n?")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def parse_text(data: bytes) -> Parsed:
    """Chapters where headings tell them, else blocks; a text with form feeds has real pages."""
    decoded = decode(data)
    check_length(len(decoded.text))
    if "\f" in decoded.text.strip():
        pages = re.findall(r"[^\f]*\f|[^\f]+", decoded.text)
        return Parsed(pages, unit="page", notices=decoded.notices)
    return Parsed(sections(decoded.text), notices=decoded.notices)


def parse_markdown(data: bytes) -> Parsed:
    """Markdown stays as it is written; headings of the first three ranks start sections."""
    decoded = decode(data)
    check_length(len(decoded.text))
    lines = _LINE.findall(decoded.text)
    headings = list(_markdown_headings(lines))
    title = lines[headings[0]].strip(" \t\n#") if headings else ""
    return Parsed(under(lines, headings), title, notices=decoded.notices)


def sections(text: str) -> list[str]:
    """Cut plain text at chapter headings; what is then still too long is cut between paragraphs."""
    lines = _LINE.findall(text)
    chapters = cut(lines, _chapter_headings(lines), body=CHAPTER_BODY)
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


def _chapter_headings(lines: Sequence[str]) -> Iterator[int]:
    for index, line in enumerate(lines):
        text = line.strip()
        if not text or (index and lines[index - 1].strip()):
            continue
        alone = index + 1 < len(lines) and not lines[index + 1].strip()
        if _CHAPTER.fullmatch(text) or (alone and _BARE_NUMBER.fullmatch(text)):
            yield index


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
