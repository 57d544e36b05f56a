"""Headings that a text underlines with punctuation, or numbers: "3. Programming", "A Attributes"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

SHORTEST_LINE = 3  # characters of punctuation below a heading
UNEVEN = 1  # characters that such a line may be longer or shorter than its heading
LONGEST = 120  # characters of a heading
SECTION_BODY = 200  # characters; less between two numbers is a list or a table of contents
FEWEST = 3  # numbered sections, with text in each: fewer are a list
_RULE = re.compile(r"([=\-~^*#+])\1+")
_COLUMNS = re.compile(r"\S(?: {2,}|\t)\S")
_COUNTED = re.compile(r"(?:(\d{1,2})\.?|([A-Z])\.?)\s+([A-Z][^.!?;:=]{1,60}|[A-Z][^.!?;=]{1,60}\([^.)]*\))")


def underlined(lines: Sequence[str]) -> list[tuple[int, int]]:
    """(line, rank) of the headings with punctuation below; the mark that comes first has the highest rank."""
    ranks: dict[str, int] = {}
    found = []
    for index in range(len(lines) - 1):
        title, below = lines[index].strip(), lines[index + 1].strip()
        rule = _RULE.fullmatch(below)
        above = lines[index - 1].strip() if index else ""
        if rule and above in ("", below) and _is_title(title) and abs(len(below) - len(title)) <= UNEVEN:
            mark = below[0] * 2 if above else below[0]
            found.append((index, ranks.setdefault(mark, len(ranks) + 1)))
    return found


def _is_title(text: str) -> bool:
    plain = SHORTEST_LINE <= len(text) <= LONGEST and not _COLUMNS.search(text)
    return plain and any(map(str.isalnum, text))


def numbered(lines: Sequence[str]) -> list[int]:
    """The lines of sections that are counted from 1, each with some text, and of appendices from A after them."""
    found = [*_counted(lines), (len(lines), "")]
    counted = [(at, number) for (at, number), after in pairwise(found) if _has_body(lines, at + 1, after[0])]
    sections = _in_turn(lines, counted, [str(number) for number in range(1, 100)], 0)
    if len(sections) < FEWEST:
        return []
    letters = [chr(ord("A") + at) for at in range(26)]
    return sections + _in_turn(lines, counted, letters, sections[-1] + 1)


def _counted(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(line, number) of what may be a numbered heading; of equal ones the last: others stand in tables of contents."""
    found = [(at, match) for at, line in enumerate(lines) if (match := _COUNTED.fullmatch(line.strip()))]
    last = {match[0].split()[-1] + match[3].casefold(): at for at, match in found}
    kept = set(last.values())
    yield from ((at, match[1] or match[2]) for at, match in found if at in kept)


def _in_turn(
    lines: Sequence[str], counted: Sequence[tuple[int, str]], order: Sequence[str], start: int
) -> list[int]:
    """The lines that bear these numbers in turn, with a section's text between them."""
    found: list[int] = []
    for at, number in counted:
        if at < start or len(found) == len(order) or number != order[len(found)]:
            continue
        if not found or _has_body(lines, found[-1] + 1, at):
            found.append(at)
    return found


def _has_body(lines: Sequence[str], start: int, stop: int) -> bool:
    body = 0
    for line in lines[start:stop]:
        body += len(line.strip())
        if body >= SECTION_BODY:
            return True
    return False
