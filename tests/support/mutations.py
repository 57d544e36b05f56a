"""Damage: seeded changes to documents, of their bytes and of what the bytes mean."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable
from random import Random

Mutator = Callable[[Random, bytes], bytes]

NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"-2147483649", b"9" * 40, b"1e400", b"0.0.1")
TOKENS = (b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b]52;c;aGk=\x07", b"<!--", b"]]>", b"&#0;", b"<![CDATA[")
PDF_TOKENS = (
    *(b"<<", b">>", b"[", b"]", b"(", b")", b"<", b"R", b"obj", b"endobj", b"stream\n", b"endstream", b"%"),
    *(b"/Kids [1 0 R]", b"/Parent 3 0 R", b"/Filter [/LZWDecode /FlateDecode]", b"null", b"BT", b"Tj", b"q"),
)
FILTERS = (
    b"LZWDecode",
    b"RunLengthDecode",
    b"ASCII85Decode",
    b"ASCIIHexDecode",
    b"JBIG2Decode",
    b"Crypt",
    b"X",
)
MARKUP = (
    b"<p>",
    b"</div>",
    b"<table><tr>",
    b"<pre>",
    b"<title>",
    b"<script>",
    b"&amp",
    b"<!DOCTYPE",
    b"<a b='",
)
MOST = 4096  # bytes that one change of bytes inserts, deletes or copies

_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.S)
_NUMBER = re.compile(rb"(?<![\d.])\d+(?![\d.])")
_REFERENCE = re.compile(rb"(\d+) (\d+) R")
_NAME = re.compile(rb"/[A-Za-z0-9]+")
_ATTRIBUTE = re.compile(rb'"[^"<>]*"')


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data))
    return start, min(len(data), start + 1 + int(MOST ** random.random()))


def flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 4, 32, len(data) // 100 + 1))):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def inserted(random: Random, data: bytes) -> bytes:
    at, end = _span(random, data)
    return data[:at] + random.randbytes(end - at) + data[at:]


def deleted(random: Random, data: bytes) -> bytes:
    at, end = _span(random, data)
    return data[:at] + data[end:]


def doubled(random: Random, data: bytes) -> bytes:
    at, end = _span(random, data)
    return data[:end] + data[at:end] * random.choice((1, 2, 50)) + data[end:]


def exchanged(random: Random, data: bytes) -> bytes:
    a, b, c, d = sorted((*_span(random, data), *_span(random, data)))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(8, len(data))]


def zeroed(random: Random, data: bytes) -> bytes:
    at, end = _span(random, data)
    return data[:at] + random.choice((b"\0", b"\n", b"\xff", b"9")) * (end - at) + data[end:]


def sprinkled(random: Random, data: bytes) -> bytes:
    for _ in range(random.randrange(1, 9)):
        at = random.randrange(len(data))
        data = data[:at] + random.choice((*NUMBERS, *TOKENS)) + data[at:]
    return data


def _replaced(pattern: re.Pattern[bytes], new: Callable[[Random, re.Match[bytes]], bytes]) -> Mutator:
    """Changes one to three of the places that match."""

    def mutate(random: Random, data: bytes) -> bytes:
        places = list(pattern.finditer(data))
        chosen = random.sample(places, min(len(places), random.randrange(1, 4)))
        for match in sorted(chosen, key=lambda each: -each.start()):
            data = data[: match.start()] + new(random, match) + data[match.end() :]
        return data

    return mutate


def _other_reference(random: Random, match: re.Match[bytes]) -> bytes:
    return b"%d 0 R" % max(0, int(match[1]) + random.randrange(-9, 10))


def _other_stream(random: Random, match: re.Match[bytes]) -> bytes:
    """The stream with its content damaged inside the compression, where the checksum is right again."""
    try:
        content, packed = zlib.decompress(match[1]), True
    except zlib.error:
        content, packed = match[1], False
    if content:
        content = random.choice((flipped, doubled, deleted, sprinkled, pdf_sprinkled))(random, content)
    return b"stream\n" + (zlib.compress(content) if packed else content) + b"\nendstream"


def pdf_sprinkled(random: Random, data: bytes) -> bytes:
    for _ in range(random.randrange(1, 9)):
        at = random.randrange(len(data))
        data = data[:at] + b" " + random.choice((*NUMBERS, *PDF_TOKENS)) + b" " + data[at:]
    return data


def marked_up(random: Random, data: bytes) -> bytes:
    for _ in range(random.randrange(1, 9)):
        at = random.randrange(len(data))
        data = data[:at] + random.choice((*MARKUP, *TOKENS)) * random.choice((1, 1, 1, 200)) + data[at:]
    return data


BYTES: tuple[Mutator, ...] = (flipped, inserted, deleted, doubled, exchanged, cut, zeroed, sprinkled)
PDF: tuple[Mutator, ...] = (
    *BYTES,
    pdf_sprinkled,
    _replaced(_NUMBER, lambda random, _match: random.choice(NUMBERS)),
    _replaced(_REFERENCE, _other_reference),
    _replaced(_REFERENCE, lambda random, _match: b"%d 0 R" % random.randrange(99_999)),
    _replaced(_NAME, lambda random, match: b"/" + random.choice((*FILTERS, match[0][1:][::-1], b""))),
    _replaced(
        re.compile(rb"/(?:Length|Count|N|First|Size|W|Index|Prev)[ \[]*\d+"),
        lambda random, match: re.sub(rb"\d+$", random.choice(NUMBERS).replace(b"\\", b""), match[0]),
    ),
    _replaced(re.compile(rb"/FlateDecode"), lambda random, _match: b"/" + random.choice(FILTERS)),
    _replaced(_STREAM, _other_stream),
    _replaced(_STREAM, _other_stream),
    _replaced(re.compile(rb"\bxref\b|\bstartxref\b|\btrailer\b|\bobj\b|%%EOF"), lambda _random, _match: b""),
)
MARKED_UP: tuple[Mutator, ...] = (
    *BYTES,
    marked_up,
    _replaced(
        _ATTRIBUTE, lambda random, match: b'"' + match[0].strip(b'"')[::-1] + random.choice(TOKENS) + b'"'
    ),
    _replaced(re.compile(rb"<[^<>]*>"), lambda random, match: match[0] * random.choice((0, 2, 500))),
)


def rezipped(random: Random, data: bytes) -> bytes:
    """An archive with one member changed, lost, renamed or there twice."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = random.randrange(len(members))
    name, content = members[at]
    other = random.choice(
        ("../../x", "/etc/passwd", name.upper(), "a" * 5000, "META-INF/container.xml", "\\x")
    )
    changed = random.choice(MARKED_UP)(random, content or b"?")
    choices: tuple[list[tuple[str, bytes]], ...] = (
        [(name, changed)],
        [(name, changed)],
        [],
        [(other, content)],
        [(name, content), (name, changed)],
    )
    members[at : at + 1] = random.choice(choices)
    return zipped(members)


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members:
            entry = zipfile.ZipInfo(name)  # of 1980, so that the bytes are the same at every time
            archive.NameToInfo.pop(name, None)  # no warning for names that are there twice
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


PACKED = ("EPUB", "Word", "PowerPoint", "OpenDocument")  # as ZIP archives
MUTATORS = {
    "PDF": PDF,
    **dict.fromkeys(PACKED, (*BYTES, *[rezipped] * 16)),
    "HTML": MARKED_UP,
    "Markdown": MARKED_UP,
    "text": BYTES,
}


def mutated(random: Random, data: bytes, kind: str) -> bytes:
    """One to three changes that suit a document of that kind."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(MUTATORS[kind if kind not in PACKED or _is_whole(data) else "text"])(
            random, data
        )
        data = data or b"?"
    return data


def _is_whole(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return bool(archive.namelist()) and archive.testzip() is None
    except Exception:
        return False
