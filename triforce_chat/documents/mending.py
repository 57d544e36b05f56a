"""Text as a page shows it becomes text as it was written: ligatures, hyphens at line ends, stray characters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
    | dict.fromkeys("\uf0b7\uf0a7", "•")  # as Symbol and Wingdings have it
)
PART = 4  # letters; two shorter words in a row, as in "for-get", are more likely one word than a compound
_UNKNOWN = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd]+")
_WORD = re.compile(r"[^\W\d_]+(?:[-‐][^\W\d_]+)*")
# "quan-", a line end, "tity," and what else is on the line: the second part begins with a small letter.
_DIVIDED = re.compile(
    r"(?<![\w-])([^\W\d_]+)([-‐\xad])[ \t]*\n[ \t]*((?![A-ZÀ-ÞΑ-ΩА-Я])[^\W\d_]+)(\S*)[ \t]*\n?"
)


def mended(text: str) -> str:
    """With letters for ligatures, without NULs, and one U+FFFD for a run of characters that nothing tells."""
    return _UNKNOWN.sub("\ufffd", text.translate(LIGATURES).replace("\0", ""))


def joined(texts: Sequence[str]) -> list[str]:
    """With each word that a hyphen divides at a line end in one piece, on its first line.

    Whether the hyphen belongs to the word is told by the words of all texts.
    """
    known = Counter(word.lower() for text in texts for word in _WORD.findall(_DIVIDED.sub(" ", text)))
    return [_DIVIDED.sub(lambda match: f"{_whole(match, known)}{match[4]}\n", text) for text in texts]


def _whole(match: re.Match[str], known: Mapping[str, int]) -> str:
    """The word without the hyphen, or with it, where the texts have it so or have both parts as words."""
    first, hyphen, second = match.group(1, 2, 3)
    plain, compound = f"{first}{second}", f"{first}-{second}"
    without, with_hyphen = known.get(plain.lower(), 0), known.get(compound.lower(), 0)
    if hyphen == "\xad" or without or with_hyphen:
        return compound if with_hyphen > without and hyphen != "\xad" else plain
    parts = (first.lower(), second.lower())
    return compound if all(len(part) >= PART and part in known for part in parts) else plain
