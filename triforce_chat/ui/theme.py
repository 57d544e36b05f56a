"""Styles that are readable on a white and on a black background.

Text keeps the terminal's own colour and differs by weight; only bars and errors are coloured.
"""

from __future__ import annotations

from pygments.token import Comment, Keyword, String
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.theme import Theme

BORDER, BORDER_ALERT = "dim", "bold"
BAR, BAR_BACK = "green", "dim"

_BOLD, _DIM = Style(bold=True), Style(dim=True)

THEME = Theme(
    {
        **{f"markdown.{name}": _BOLD for name in ("h2", "h3", "code", "item.number", "table.header")},
        **{f"markdown.{name}": Style() for name in ("code_block", "list")},
        "markdown.h4": Style(bold=True, italic=True),
        "markdown.block_quote": Style(italic=True),
        "markdown.link": Style(underline=True),
        "markdown.link_url": Style(underline=True),
        "markdown.table.border": _DIM,
        "bar.back": Style.parse(BAR_BACK),
        "bar.pulse": Style.parse(BAR),
        "bar.complete": Style.parse(BAR),
        "bar.finished": Style.parse(BAR),
        "progress.elapsed": _DIM,
    }
)

CODE = ANSISyntaxTheme({Keyword: _BOLD, Comment: _DIM, String: Style(italic=True)})
