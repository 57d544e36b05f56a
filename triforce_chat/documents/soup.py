"""Markup as a tree, in a time that is proportional to its length.

Python's HTML parser looks for the end of each piece of markup in all that follows, and for nothing if there is none:
then a page of openings alone takes the square of its length. So openings that nothing ends are made text beforehand.
"""

from __future__ import annotations

import re

from bs4 import BeautifulSoup

# How pieces of markup begin, and what ends them. The last one is every other piece.
_PIECES = (
    (re.compile(r"<(?=!--)"), re.compile(r"--!?\s*>")),
    (re.compile(r"<(?=!\[\s*(?:if|else|endif))", re.IGNORECASE), re.compile(r"\]\s*>")),
    (re.compile(r"<(?=!\[(?!\s*(?:if|else|endif)))", re.IGNORECASE), re.compile(r"\]\s*\]\s*>")),
    (re.compile(r"<"), re.compile(r">")),
)


def soup(text: str) -> BeautifulSoup:
    """The tree of a page, or of XML: this parser knows no custom entities, so nothing in a file can expand one."""
    return BeautifulSoup(ended(text), "html.parser")


def ended(text: str) -> str:
    """The page with ``&lt;`` for each ``<`` of a comment, section or tag that does not end."""
    for opening, end in _PIECES:
        last = max((match.end() for match in end.finditer(text)), default=0)
        text = text[:last] + opening.sub("&lt;", text[last:])
    return text
