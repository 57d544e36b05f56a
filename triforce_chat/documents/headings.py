"""The headings of running text: lines such as "CHAPTER IV" and "PART TWO", with what they are called."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from triforce_chat.documents.model import Heading
from triforce_chat.documents.section_titles import numbered, underlined

CHAPTER_BODY = 400  # characters; less between two headings is a table of contents
SECOND_LINE = 80  # characters of the line that names a chapter, below its number
SHORTER = 1.5  # times: the first line of a text is so much longer than a name just below the number and just above it
NAME_LINES = 2  # of a name on a page
QUOTES = "”\"’'»)"
PART, CHAPTER, NUMBER = 1, 2, 3  # ranks
_NUMBER = (
    r"(?:\d{1,3}|[IVXLC]{1,8}|(?i:(?:the )?(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|\w+teen|(?:twent|thirt|fort|fift|sixt|sevent|eight|ninet)y(?:-\w+)?|first|second|third|fourth|fifth|last)))"
)
_PARTS = r"(?:PART|BOOK|VOLUME|ACT|TEIL|ЧАСТЬ)"
_NOUN = (
    r"(?:CHAPTER|PART|BOOK|VOLUME|ACT|SCENE|CANTO|LETTER|STAVE|ADVENTURE|SECTION|CHAPITRE|KAPITEL|TEIL"
    r"|CAP[IÍ]TULO|CAPITOLO|ГЛАВА|ЧАСТЬ)"
)
_HEADING = re.compile(
    rf"{_NOUN}\s+{_NUMBER}\b.{{0,80}}"
    rf"|(?:{_NOUN.title()})\s+{_NUMBER}\b.{{0,80}}"
    r"|第[0-9一二三四五六七八九十百]+[章回部].{0,40}"
    r"|[IVXLC]{1,8}\. +[^a-z]{3,80}"
    r"|(?:Appendix|Annex|Anhang)\s+[A-Z](?:[.:].{0,80})?"
    r"|(?:PROLOGUE|EPILOGUE|PREFACE|INTRODUCTION|CONCLUSION|APPENDIX)\b.{0,40}"
)
_NAMED_NUMBER = re.compile(r"[IVXLC]{1,8}\. +[^\W\d_][^.!?;]{2,60}")
_BARE_NUMBER = re.compile(r"(?:\d{1,3}|[IVXLC]{1,8})\.?|\[ ?(?:\d{1,3}|[IVXLC]{1,8}) ?\]")
_PART = re.compile(rf"{_PARTS}\b|{_PARTS.title()}\b|第[^章回]+部")
_SEVERAL = re.compile(rf"{_NOUN}.*\s{_NOUN}\s+{_NUMBER}\b")  # a line of a table of contents
_UNNAMED = re.compile(rf"(?:{_NOUN}|{_NOUN.title()})\s+{_NUMBER}\.?:?|{_BARE_NUMBER.pattern}")
_KIND = re.compile(rf"^(?:{_NOUN}|{_NOUN.title()})\s+")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def heading_lines(lines: Sequence[str]) -> Iterator[int]:
    """The lines that begin a paragraph and look like a chapter's heading."""
    for index, line in enumerate(lines):
        text = line.strip()
        if not text or (index and lines[index - 1].strip()):
            continue
        alone = index + 1 < len(lines) and not lines[index + 1].strip()
        if _HEADING.fullmatch(text) or (
            alone and (_BARE_NUMBER.fullmatch(text) or _NAMED_NUMBER.fullmatch(text))
        ):
            yield index


def text_headings(texts: Sequence[str]) -> list[Heading]:
    """The headings in the sections of a text: lines that call themselves chapters, or the underlined ones if more."""
    lines = _LINE.findall("".join(texts))
    found, marked = _placed(lines, list(heading_lines(lines)), texts), underlined(lines)
    if len(marked) <= len(found):
        return found
    offsets = [0, *accumulate(map(len, lines))]
    return placed_at(((offsets[at], rank, lines[at].strip()) for at, rank in marked), texts)


def page_headings(texts: Sequence[str]) -> list[Heading]:
    """The headings on pages that show no empty lines, as those of a PDF file; else its numbered sections."""
    lines = _LINE.findall("".join(texts))
    named_lines = [index for index, line in enumerate(lines) if _HEADING.fullmatch(line.strip())]
    found = _placed(lines, named_lines, texts)
    if len(found) > 1:
        return found
    offsets = [0, *accumulate(map(len, lines))]
    return (
        placed_at(((offsets[at], CHAPTER, " ".join(lines[at].split())) for at in numbered(lines)), texts)
        or found
    )


def named(lines: Sequence[str], index: int) -> str:
    """A heading, with the line below it where the first one has only a number."""
    title = " ".join(lines[index].split())
    if not _UNNAMED.fullmatch(title):
        return title
    name = _name_below(lines, index)
    is_name = len(name) <= SECOND_LINE and name.rstrip(QUOTES)[-1:].isalnum()
    return f"{title.rstrip('.:')}. {name}" if is_name and not _HEADING.fullmatch(name) else title


def _name_below(lines: Sequence[str], index: int) -> str:
    """What stands alone below a heading, or in one or two lines that are shorter than the text just below them."""
    at = next((at for at in range(index + 1, min(index + 4, len(lines))) if lines[at].strip()), index)
    told = [" ".join(line.split()) for line in lines[at : at + NAME_LINES + 1]]
    if at == index:
        return ""
    if not any(told[1:2]):
        return told[0]
    for count in range(1, len(told)) if at == index + 1 else ():
        if all(len(told[count]) > SHORTER * len(line) for line in told[:count]):
            return " ".join(told[:count])
    return ""


def placed_at(starts: Iterable[tuple[int, int, str]], texts: Sequence[str]) -> list[Heading]:
    """(character in the whole text, rank, title) as headings of its sections."""
    ends = list(accumulate(map(len, texts)))
    found = []
    for at, rank, title in starts:
        page = min(bisect_right(ends, at), len(texts) - 1)
        found.append(Heading(title, rank, page + 1, at - (ends[page] - len(texts[page]))))
    return found


def _placed(lines: Sequence[str], indices: Sequence[int], texts: Sequence[str]) -> list[Heading]:
    offsets = [0, *accumulate(map(len, lines))]
    kept = _with_bodies(lines, indices)
    last = {
        _key(named(lines, at)): at for at in kept
    }  # what stands there twice stands in a table of contents first
    found = [
        at
        for at in kept
        if not _SEVERAL.search(lines[at])
        and (last[_key(named(lines, at))] == at or not _key(named(lines, at)))
    ]
    return placed_at(((offsets[at], _rank(lines[at].strip()), named(lines, at)) for at in found), texts)


def _key(title: str) -> str:
    """The words of a heading without "CHAPTER"; nothing of one that has only a number, as each volume may have."""
    return "" if _UNNAMED.fullmatch(title) else " ".join(re.findall(r"\w+", _KIND.sub("", title).lower()))


def _rank(heading: str) -> int:
    if _PART.match(heading):
        return PART
    return NUMBER if _BARE_NUMBER.fullmatch(heading) else CHAPTER


def _with_bodies(lines: Sequence[str], headings: Sequence[int]) -> list[int]:
    """The headings that text follows, and those of higher rank just before them: no tables of contents."""
    found: list[int] = []
    run: list[int] = []
    for heading, following in pairwise([*headings, len(lines)]):
        run.append(heading)
        body = 0
        for line in lines[heading + 1 : following]:
            body += len(line.strip())
            if body >= CHAPTER_BODY:
                found += _stacked(lines, run)
                run = []
                break
    return found


def _stacked(lines: Sequence[str], run: Sequence[int]) -> list[int]:
    """The last of a run of headings, after those above it in rank."""
    kept = [run[-1]]
    for index in reversed(run[:-1]):
        if _rank(lines[index].strip()) >= _rank(lines[kept[0]].strip()):
            break
        kept.insert(0, index)
    return kept
