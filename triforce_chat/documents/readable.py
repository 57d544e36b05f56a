"""How much of a text is unreadable: characters that the fonts of a PDF do not identify, or identify wrongly."""

from __future__ import annotations

import re
import unicodedata

NO_CHARACTER = "\ufffd"
JUDGED = 100  # letters; fewer tell no language
VOWELS = frozenset("aeiouy")
FEWEST_VOWELS = 0.25  # of the letters: English has 0.4, Czech 0.37, an alphabet shifted by some places 0.15
SAMPLE = 20_000  # characters that are judged
_GLYPH_NAMES = re.compile(r"(?:/(?:gid|cid|uni|[gcCuaAHFf])[0-9][0-9A-Fa-f]*){2,}|(?:\(cid:[0-9]+\))+")
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff\ue000-\uf8ff]")


def without_glyph_names(text: str) -> str:
    """With U+FFFD for each name that stands for a character, as in ``/g3/g5`` and ``(cid:3)``."""
    return _GLYPH_NAMES.sub(lambda match: NO_CHARACTER * len(re.findall("[/(]", match[0])), text)


def doubt(text: str) -> float:
    """The share of the characters that say nothing, white space left out; 1 for codes taken for letters."""
    characters = sum(not character.isspace() for character in text)
    if not characters:
        return 0.0
    return 1.0 if is_shifted(text) else len(_NO_TEXT.findall(text)) / characters


def is_shifted(text: str) -> bool:
    """Whether a text in Latin letters has too few vowels for a language, like an alphabet shifted by some places."""
    sample = text[:SAMPLE]
    letters = [each for each in sample if each.isalpha()]
    latin = [each for each in unicodedata.normalize("NFD", sample.lower()) if "a" <= each <= "z"]
    if len(letters) < JUDGED or len(latin) < len(letters) / 2:
        return False
    return sum(letter in VOWELS for letter in latin) < FEWEST_VOWELS * len(latin)
