"""Text as a page shows it becomes text as it was written: ligatures, hyphens at line ends, stray characters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from triforce_chat.documents.readable import doubt

LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
    | dict.fromkeys("\uf0b7\uf0a7", "•")  # as Symbol and Wingdings have it
)
_NAMES = ("ff", "fi", "fl", "ffi", "ffl")
# TeX's bitmap fonts have ligatures at these codes, in its first encoding and in Cork's, and do not say what a code is.
_TEX = dict(zip("\x0b\x0c\x0d\x0e\x0f\x1b\x1c\x1d\x1e\x1f", _NAMES * 2, strict=True))
_TEX_LIGATURE = re.compile("(?<=[a-z])[\x0b-\x0f\x1b-\x1f]|[\x0b-\x0f\x1b-\x1f](?=[a-z])")
_CORK = str.maketrans("\x10\x11\x12\x13\x14\x15\x16", "“”„«»–—")
MOST = 0.1  # of the characters: more codes without a meaning belong to fonts of another kind
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


def with_tex_ligatures(text: str) -> str:
    """With letters for the codes within words at which fonts of TeX have ligatures, and quotation marks and dashes.

    A carriage return, which is one of them, may be what it is if there is no other.
    """
    found = {*_TEX_LIGATURE.findall(text)}
    if not found - {"\r"} or doubt(text) > MOST:
        return text
    signs = _CORK if max(found) >= "\x1b" else {}
    return _TEX_LIGATURE.sub(lambda match: _TEX[match[0]], text).translate(signs)


def joined(texts: Sequence[str]) -> list[str]:
    """With each word that a hyphen divides at a line end in one piece, on its first line.

    Whether the hyphen belongs to the word follows from the words of all texts.
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
