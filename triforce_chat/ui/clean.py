"""Making text from a model or a document harmless for a terminal.

Escape sequences are removed whole, and so are the remaining control characters except line feed and tab.
Bidirectional marks stay, because Arabic and Hebrew need them. Embeddings, overrides and isolates are removed,
because they display a text in another order than it has (CVE-2021-42574).
"""

from __future__ import annotations

import re

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]"  # OSC, DCS, SOS, PM and APC carry text
_HELD = 4096  # characters; a sequence longer than this is text that happens to begin like one

_SEQUENCE = re.compile(rf"{_CSI}[@-~]|{_STRING}*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]")
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}{{0,{_HELD}}}\x1b?|\x1b[ -/]*|\x1b[\]PX^_])\Z")
_REORDERING = r"\u202a-\u202e\u2066-\u2069"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_REORDERING}]")
_UNESCAPED = re.compile(rf"[\x7f-\x9f\u2028\u2029\ud800-\udfff{_REORDERING}]")  # by json.dumps


def clean(text: str) -> str:
    """The text without escape sequences, control characters and lone surrogates."""
    return _CONTROLS.sub("", _SEQUENCE.sub("", text))


def one_line(text: str) -> str:
    """``clean``, with every run of white space as a single space."""
    return " ".join(clean(text).split())


def escaped(json: str) -> str:
    """Escape the characters that ``json.dumps`` leaves raw and a terminal may obey; the value stays the same."""
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


class Cleaner:
    """``clean`` for text in pieces: an escape sequence may begin in one and end in the next."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Add a piece; returns the clean text up to where an escape sequence may have begun."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._held = text[cut:]
        return clean(text[:cut])

    def rest(self) -> str:
        """The text that was held back, at the end of the input."""
        held, self._held = self._held, ""
        return clean(held)
