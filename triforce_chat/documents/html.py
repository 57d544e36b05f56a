"""HTML as the text that a browser would show, cut at headings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate

from bs4.dammit import EncodingDetector
from bs4.element import (
    Comment,
    Declaration,
    Doctype,
    NavigableString,
    PageElement,
    ProcessingInstruction,
    Tag,
)

from triforce_chat.documents.encoding import Decoded, decode
from triforce_chat.documents.headings import placed_at, text_headings
from triforce_chat.documents.model import Heading, Parsed, check_length
from triforce_chat.documents.soup import soup
from triforce_chat.documents.text import under

UNSEEN = frozenset({"script", "style", "noscript", "template", "title"})
MARKUP = (Comment, Declaration, Doctype, ProcessingInstruction)
SECTION_HEADINGS = frozenset({"h1", "h2", "h3"})
PARAGRAPHS = frozenset(
    ["p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "table", "ul", "ol", "dl", "figure", "hr"]
)
LINES = frozenset(
    [
        "div",
        "section",
        "article",
        "main",
        "header",
        "footer",
        "aside",
        "nav",
        "body",
        "li",
        "dt",
        "dd",
        "tr",
        "caption",
        "figcaption",
        "address",
        "form",
    ]
)
DECLARED_WITHIN = 4096  # bytes; browsers look at 1024, and the search takes their square
CELLS = frozenset({"td", "th"})
_SPACE = re.compile(r"[ \t\n\r\f]+")


@dataclass(slots=True)
class Flow:
    """Text laid out line by line; white space collapses as in a browser, ``headings`` are lines and ranks."""

    parts: list[str] = field(default_factory=list)
    headings: list[tuple[int, int]] = field(default_factory=list)
    newlines: int = 2  # at the end of what is written so far; a beginning needs no gap
    line: int = 0

    def words(self, text: str) -> None:
        text = _SPACE.sub(" ", text.replace("\xad", ""))  # soft hyphens are hints for line breaking
        if self.newlines or self.parts[-1].endswith((" ", "\t")):
            text = text.lstrip(" ")
        if text:
            self.parts.append(text)
            self.newlines = 0

    def verbatim(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.line += text.count("\n")
            self.newlines = len(text) - len(text.rstrip("\n"))

    def bullet(self) -> None:
        self.parts.append("- ")
        self.newlines = 2  # a paragraph that opens the item stays on its line

    def gap(self, newlines: int) -> None:
        """End the line, and leave empty ones until there are ``newlines`` line ends."""
        missing = newlines - self.newlines
        if missing > 0:
            self.parts[-1] = self.parts[-1].rstrip(" \t")
            self.verbatim("\n" * missing)
            self.newlines = newlines

    def text(self) -> str:
        return "".join(self.parts).rstrip() + "\n" if self.parts else ""

    def sections(self) -> tuple[list[str], list[Heading]]:
        """The sections of the text, and its headings."""
        lines = re.findall(r"[^\n]*\n|[^\n]+", "".join(self.parts).rstrip() + "\n")
        texts, offsets = under(lines, [line for line, _ in self.headings]), [0, *accumulate(map(len, lines))]
        starts = [(offsets[at], rank, lines[at].strip()) for at, rank in self.headings if at < len(lines)]
        return texts, placed_at((each for each in starts if each[2]), texts) or text_headings(texts)


def parse_html(data: bytes) -> Parsed:
    """Text of a page; scripts and styles are no text, h1 to h3 start sections."""
    decoded = decode_html(data)
    check_length(len(decoded.text))
    page, flow = soup(decoded.text), Flow()
    _lay_out(page, flow)
    title = page.title.get_text() if page.title else ""
    texts, headings = flow.sections()
    return Parsed(texts, title, notices=decoded.notices, headings=tuple(headings))


def decode_html(data: bytes) -> Decoded:
    """Like ``decode``, with the encoding that the page itself declares."""
    head = data[:DECLARED_WITHIN]
    return decode(data, EncodingDetector.find_declared_encoding(head, True, search_entire_document=True))


def _lay_out(root: Tag, flow: Flow) -> None:
    # A stack instead of recursion: files nest deeper than Python's stack allows.
    stack: list[tuple[PageElement | str, bool]] = [(root, False)]
    while stack:
        node, verbatim = stack.pop()
        if isinstance(node, Tag):
            _open(node, flow)
            stack.append((f"/{node.name}", False))
            inner = verbatim or node.name in ("pre", "textarea")
            stack += [(child, inner) for child in reversed(node.contents) if not _is_unseen(child)]
        elif isinstance(node, NavigableString):
            flow.verbatim(str(node)) if verbatim else flow.words(str(node))
        elif isinstance(node, str):
            _close(node[1:], flow)


def _is_unseen(node: PageElement) -> bool:
    return node.name in UNSEEN if isinstance(node, Tag) else isinstance(node, MARKUP)


def _open(tag: Tag, flow: Flow) -> None:
    _break(tag.name, flow)
    if tag.name in SECTION_HEADINGS:
        flow.headings.append((flow.line, int(tag.name[1])))
    elif tag.name == "li":
        flow.bullet()
    elif tag.name == "br":
        flow.gap(min(flow.newlines + 1, 2))


def _close(name: str, flow: Flow) -> None:
    if name in CELLS and not flow.newlines:
        flow.verbatim("\t")
    _break(name, flow)


def _break(name: str, flow: Flow) -> None:
    if name in PARAGRAPHS:
        flow.gap(2)
    elif name in LINES:
        flow.gap(1)
