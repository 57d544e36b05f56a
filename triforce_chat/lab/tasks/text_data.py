"""Reads the text files in ``templates/``: lines, tables, word lists and paragraphs; ``# `` starts a comment line.

Their order is behaviour: seeded draws choose entries by position, and every fourth is held out for evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType


def read_paragraphs(name: str) -> tuple[tuple[str, ...], ...]:
    """The lines of each paragraph of ``templates/NAME.txt``; blank lines separate paragraphs."""
    file = resources.files(__package__) / "templates" / f"{name}.txt"
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("# "))
    return tuple(tuple(part.strip().split("\n")) for part in text.split("\n\n") if part.strip())


def read_lines(name: str) -> tuple[str, ...]:
    """One entry per line."""
    return tuple(line for paragraph in read_paragraphs(name) for line in paragraph)


def read_rows(name: str) -> tuple[tuple[str, ...], ...]:
    """One row per line, its cells separated by vertical bars."""
    return tuple(tuple(cell.strip() for cell in line.split("|")) for line in read_lines(name))


def read_word_lists(name: str) -> Mapping[str, tuple[str, ...]]:
    """One list per paragraph: a line ``NAME:``, then words or phrases separated by commas over several lines."""
    return MappingProxyType(
        {heading.removesuffix(":"): _words(" ".join(rest)) for heading, *rest in read_paragraphs(name)}
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
