"""Bytes become text: UTF-8 first, marks next, a guess last, and binary data is refused."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from triforce_chat.errors import DocumentError

# UTF-32 comes first: its little-endian mark begins with that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Free choice among all code pages ends in CP775 or in unmarked UTF-16 for short Western texts.
LIKELY = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "koi8_r"),
    *("shift_jis", "euc_jp", "gb18030", "big5", "euc_kr"),
)
BINARY = "binary data, not a document or a text"
SAMPLE = 1 << 16
BINARY_SHARE = 0.03  # of control characters; random bytes have a tenth
FEW_NULS = 512  # characters; so many may be a slip in a text, however short
DAMAGE_SHARE = 0.1  # of the characters beyond ASCII; other encodings exceed it by far
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text with ``\\n`` line ends, and what has to be said about how it was obtained."""

    text: str
    notices: tuple[str, ...] = ()


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Text of ``data``; ``declared`` is tried after UTF-8. Raises ``DocumentError`` for binary data."""
    mark, name = next(((mark, name) for mark, name in MARKS if data.startswith(mark)), (b"", "utf-8"))
    body, name = data[len(mark) :], name if mark else _unmarked(data)
    strict = _strict(body, name)
    if strict is not None and strict.count("\0") > max(FEW_NULS, BINARY_SHARE * len(strict)):
        raise DocumentError(BINARY)
    if strict is not None:
        return Decoded(clean(strict))
    return _damaged(body, name, certain=bool(mark)) or _declared(body, declared) or _guessed(body)


def clean(text: str) -> str:
    """Line ends as ``\\n``; halves of surrogate pairs, which no tokenizer takes, joined or replaced."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _SURROGATE.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_binary(data: bytes) -> bool:
    """Whether the first bytes hold more control characters than any text does."""
    sample = data[:SAMPLE]
    return len(sample) - len(sample.translate(None, _CONTROLS)) > BINARY_SHARE * len(sample)


def _unmarked(data: bytes) -> str:
    sample = data[:SAMPLE]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) <= len(sample) // 8 or min(even, odd) > max(even, odd) // 8:
        return "utf-8"
    return "utf-16-le" if odd > even else "utf-16-be"


def _strict(body: bytes, name: str) -> str | None:
    try:
        return body.decode(name)
    except (UnicodeDecodeError, LookupError):
        return None


def _damaged(body: bytes, name: str, *, certain: bool) -> Decoded | None:
    text = body.decode(name, "replace")
    bad, beyond = text.count("\ufffd"), sum(char > "\x7f" for char in text)
    cut_off = bad == 1 and text.endswith("\ufffd") and len(body) > 1 and body[-1] >= 0xC2
    if not certain and (is_binary(body) or not (cut_off or bad <= DAMAGE_SHARE * beyond)):
        return None
    return Decoded(clean(text), (f"{bad} damaged character{'s' * (bad > 1)} replaced",))


def _declared(body: bytes, name: str | None) -> Decoded | None:
    text = _strict(body, name) if name else None
    return None if text is None else Decoded(clean(text))


def _guessed(body: bytes) -> Decoded:
    if is_binary(body):
        raise DocumentError(BINARY)
    name = _likeliest(body) or "latin-1"
    return Decoded(clean(body.decode(name, "replace")), (f"not UTF-8, read as {name}",))


def _likeliest(body: bytes) -> str | None:
    from charset_normalizer import from_bytes  # slow to import and seldom needed

    ranked = [
        (match.chaos, -match.coherence, LIKELY.index(name))
        for match in from_bytes(body, cp_isolation=list(LIKELY))
        for name in match.could_be_from_charset
        if name in LIKELY
    ]
    return LIKELY[min(ranked)[2]] if ranked else None
