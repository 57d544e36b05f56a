"""Markdown answers: which blocks of a growing text are settled, and how Rich renders them."""

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

# Rich omits HTML and link definitions; parsed as plain text they stay visible.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


class RenderedMarkdown:
    """Markdown as a Rich renderable that omits no text and keeps line ends.

    It writes no hyperlink codes. Between two blocks there is exactly one blank line, wherever the text is cut.
    """

    def __init__(self, text: str) -> None:
        self._blocks = _blocks([_harmless(token) for token in _PARSER.parse(text)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for at, block in enumerate(self._blocks):
            if at:
                yield Segment.line()
            page = Markdown("", hyperlinks=False, code_theme=CODE)  # type: ignore[arg-type]  # Syntax accepts both
            page.parsed = block
            for line in _trimmed(console.render_lines(page, options.update(height=None), pad=False)):
                yield from (*line, Segment.line())


def _blocks(tokens: list[Token]) -> list[list[Token]]:
    """The tokens of each top-level block."""
    ends = [at + 1 for at, token in enumerate(tokens) if token.level == 0 and token.nesting <= 0]
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """The lines without blank ones at either end, which only some blocks have."""
    full = [at for at, line in enumerate(lines) if any(part.text.strip() for part in line)]
    return lines[full[0] : full[-1] + 1] if full else []


def _harmless(token: Token) -> Token:
    if token.type == "softbreak":
        token.type = "hardbreak"
    token.content = clean(token.content)  # the parser decodes %1b in a link's text
    token.children = [_harmless(child) for child in token.children] if token.children else token.children
    return token


def settled_length(text: str) -> int:
    """How many leading characters belong to blocks that no later text can change.

    Only complete lines count: "2" may still become the list item "2. b".
    """
    lines = [f"{line}\n" for line in text.split("\n")[:-1]]
    blocks = [token for token in _PARSER.parse("".join(lines)) if token.level == 0 and token.map]
    if not blocks or blocks[-1].map is None:
        return 0
    ended = blocks[-1].type in CLOSED_BY_BLANK_LINE and not lines[-1].strip()
    return sum(len(line) for line in (lines if ended else lines[: blocks[-1].map[0]]))


def unsettled_part(text: str) -> str:
    """The end of a text that later text may change: its last block."""
    return text[settled_length(text) :]


def last_lines(text: str, count: int) -> str:
    """The last ``count`` lines of an unsettled block; the fence that opens a code block is kept.

    Highlighting hundreds of lines several times per second would slow the engine down.
    """
    lines = text.split("\n")
    if len(lines) <= count:
        return text
    opening = lines[:1] if lines[0].startswith(FENCES) else []
    return "\n".join([*opening, *lines[len(lines) - count :]])


class BlockSplitter:
    """Splits a text that arrives in pieces into settled blocks and a ``tail`` that may still change."""

    def __init__(self) -> None:
        self.tail = ""

    def feed(self, text: str) -> str:
        """Add a piece; returns the text of the blocks that it settled."""
        self.tail += text
        return self._cut(settled_length(self.tail)) if "\n" in text else ""

    def rest(self) -> str:
        """The tail, at the end of the text."""
        return self._cut(len(self.tail))

    def _cut(self, length: int) -> str:
        done, self.tail = self.tail[:length], self.tail[length:]
        return done if done.strip() else ""
