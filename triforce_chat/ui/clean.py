"""Text that a model or a document wrote, made harmless for a terminal.

Escape sequences are removed whole, so that no half of one stays behind as litter; what is left of the control
characters goes as well, except line feed and tab. Bidirectional marks stay: Arabic and Hebrew need them.
"""

from __future__ import annotations

import re

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]"  # OSC, DCS, SOS, PM and APC carry text
_HELD = 4096  # characters; a sequence longer than this is text that happens to begin like one

_SEQUENCE = re.compile(rf"{_CSI}[@-~]|{_STRING}*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]")
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}{{0,{_HELD}}}\x1b?|\x1b[ -/]*|\x1b[\]PX^_])\Z")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without escape sequences, control characters and lone surrogates."""
    return _CONTROLS.sub("", _SEQUENCE.sub("", text))


class Cleaner:
    """``clean`` for text that comes in pieces: a sequence may begin in one and end in the next."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """The part of what came so far that is certainly harmless and was not returned before."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._held = text[cut:]
        return clean(text[:cut])

    def rest(self) -> str:
        """What was held back, once nothing more will come."""
        held, self._held = self._held, ""
        return clean(held)
