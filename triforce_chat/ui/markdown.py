"""Answers as Markdown: which blocks of a growing text are settled, and how Rich shows them."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

from triforce_chat.ui.clean import clean
from triforce_chat.ui.theme import CODE

FENCES = ("```", "~~~")
CLOSED_BY_BLANK_LINE = {"paragraph_open", "heading_open", "table_open", "blockquote_open", "hr"}

# Rich shows neither HTML nor link definitions: as plain text they stay visible.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


class Page:
    """A Rich renderable of Markdown that loses nothing of the text and keeps its line ends.

    It writes no hyperlink codes, and exactly one blank line between two blocks wherever the text is cut.
    """

    def __init__(self, text: str) -> None:
        self._blocks = _blocks([_harmless(token) for token in _PARSER.parse(text)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for at, block in enumerate(self._blocks):
            if at:
                yield Segment.line()
            page = Markdown("", hyperlinks=False, code_theme=CODE)  # type: ignore[arg-type]  # Syntax takes both
            page.parsed = block
            for line in _trimmed(console.render_lines(page, options.update(height=None), pad=False)):
                yield from (*line, Segment.line())


def _blocks(tokens: list[Token]) -> list[list[Token]]:
    """The tokens of each top-level block."""
    ends = [at + 1 for at, token in enumerate(tokens) if token.level == 0 and token.nesting <= 0]
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """The lines without blank ones at either end: some blocks bring theirs, some do not."""
    full = [at for at, line in enumerate(lines) if any(part.text.strip() for part in line)]
    return lines[full[0] : full[-1] + 1] if full else []


def _harmless(token: Token) -> Token:
    if token.type == "softbreak":
        token.type = "hardbreak"
    token.content = clean(token.content)  # the parser decodes %1b in the text of a link
    token.children = [_harmless(child) for child in token.children] if token.children else token.children
    return token


def settled(text: str) -> int:
    """How many leading characters belong to blocks that nothing written after ``text`` can change.

    Only complete lines count: "2" may still become the list item "2. b".
    """
    lines = [f"{line}\n" for line in text.split("\n")[:-1]]
    blocks = [token for token in _PARSER.parse("".join(lines)) if token.level == 0 and token.map]
    if not blocks or blocks[-1].map is None:
        return 0
    ended = blocks[-1].type in CLOSED_BY_BLANK_LINE and not lines[-1].strip()
    return sum(len(line) for line in (lines if ended else lines[: blocks[-1].map[0]]))


def unsettled(text: str) -> str:
    """The last block of a text, which more text may change."""
    return text[settled(text) :]


def recent(text: str, count: int) -> str:
    """The last lines of an unsettled block, enough to fill a terminal; the fence that opens code stays.

    Highlighting hundreds of lines several times a second would slow the engine down.
    """
    lines = text.split("\n")
    if len(lines) <= count:
        return text
    opening = lines[:1] if lines[0].startswith(FENCES) else []
    return "\n".join([*opening, *lines[len(lines) - count :]])


class Blocks:
    """Cuts a text that comes in pieces into settled blocks and a ``tail`` that may still change."""

    def __init__(self) -> None:
        self.tail = ""

    def feed(self, text: str) -> str:
        """The blocks that this piece settled; empty while there are none."""
        self.tail += text
        return self._cut(settled(self.tail)) if "\n" in text else ""

    def rest(self) -> str:
        """The tail, once nothing more will come."""
        return self._cut(len(self.tail))

    def _cut(self, length: int) -> str:
        done, self.tail = self.tail[:length], self.tail[length:]
        return done if done.strip() else ""
