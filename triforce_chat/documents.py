"""A path or standard input becomes a title and numbered pages; nothing is dropped without a word."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section, for formats without pages); ``number`` counts from 1 as a reader would."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A title and its pages in reading order."""

    title: str
    source: str
    pages: tuple[Page, ...]
    unit: str = "page"  # or "section"
