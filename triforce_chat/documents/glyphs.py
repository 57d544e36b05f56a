"""From the glyphs of a PDF page to its lines: where a space, a tab or a line end stands between two of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SAME_LINE = 0.4  # of the height of a line: the most by which an index or an exponent is off it
SPACE = 0.11  # of it: a gap between two words
CELL = 2.2  # of it: a gap between two cells of a table
CODES = "\x0b\x0c\r\x1c\x1d\x1e\x1f"  # white space in Unicode, but ligatures in fonts of TeX
LINE_HYPHEN = "\u00ad"  # a hyphen that ends a line


@dataclass(frozen=True, slots=True)
class Glyph:
    """A character and its place on the page; ``space`` is the white space that the engine puts before it."""

    character: str
    left: float
    right: float
    base: float
    height: float
    space: str

    @property
    def is_space(self) -> bool:
        return self.character.isspace() and self.character not in CODES

    def separator(self, before: Glyph) -> str:
        """What stands between the glyph ``before`` and this one: a line end, a tab, a space or nothing.

        Within a line the gap decides; the engine, where the glyphs are not in one line or run to the left.
        """
        if before.character == LINE_HYPHEN:
            return "\n"
        height = max(self.height, before.height)
        if abs(self.base - before.base) > SAME_LINE * height or self.left < before.left:
            return "\n" if "\n" in self.space else self.space[:1]
        gap = self.left - before.right
        if before.is_space or self.is_space or gap < SPACE * height:
            return ""
        return "\t" if gap > CELL * height else " "


def laid_out(glyphs: Iterable[Glyph]) -> str:
    """The text of glyphs in reading order."""
    parts: list[str] = []
    before: Glyph | None = None
    for glyph in glyphs:
        if before is not None:
            parts.append(glyph.separator(before))
        parts.append(glyph.character)
        before = glyph
    return "".join(parts).replace(LINE_HYPHEN, "-")
