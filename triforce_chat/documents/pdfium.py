"""Pages of a PDF file read by PDFium, Chromium's engine.

It is C++ and files are anybody's, so it runs in a process that is forked for it: a page that crashes it, or that it
never finishes, costs no other page.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from triforce_chat.documents.glyphs import LINE_HYPHEN, Glyph, laid_out
from triforce_chat.documents.mending import with_tex_ligatures
from triforce_chat.documents.readable import NO_CHARACTER, doubt

ATTEMPTS = 3  # processes: all but the last may be ended by a page
CPU_SHARE = 2  # PDFium gets the half of the time: another engine may have to read everything again
GUESSED = 0.02  # of a page's characters; a formula has a few
UNNAMED = frozenset({0, 0xFFFF, 0xFFFD})  # what PDFium says of a glyph without a character
LINE_HYPHENS = frozenset({0x02, 0xFFFE})
SPACES = frozenset(b"\r\n ")
SCALE = 300 / 72  # pixels per point: what scanners use for text
PIXELS = 25_000_000  # of one image; a page of A4 has nine million


def pdfium_texts(data: bytes, password: str | None, page_seconds: float) -> dict[int, str]:
    """The texts of the pages (from 0) that PDFium can read, each within so much processor time; without it, none."""
    try:
        import pypdfium2  # noqa: F401
    except ImportError:  # there is no wheel for this machine
        return {}
    if not hasattr(os, "fork"):
        return {index: text for index, text, _ in _pages(data, password, 0)}
    texts: dict[int, str] = {}
    first = 0
    for _ in range(ATTEMPTS):
        told = list(_forked(data, password, page_seconds, first))
        texts |= {index: text for index, text, _ in told}
        if not told or told[-1][0] + 1 == told[-1][2]:
            break
        first = told[-1][0] + 2  # after the page that ended the process
    return texts


def rendered(data: bytes, password: str | None, index: int) -> Any:
    """A page (from 0) as a Pillow image for a program that recognizes text."""
    import pypdfium2

    page = pypdfium2.PdfDocument(data, password=password)[index]
    width, height = page.get_size()
    scale = min(SCALE, (PIXELS / (width * height)) ** 0.5)
    return page.render(scale=scale).to_pil()


def _forked(data: bytes, password: str | None, seconds: float, first: int) -> Iterator[tuple[int, str, int]]:
    """What ``_pages`` yields until the process that runs it ends."""
    inlet, outlet = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(inlet)
        _serve(outlet, data, password, seconds, first)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as pipe:
        lines = pipe.read().split(b"\n")
    _, _, usage = os.wait4(worker, 0)
    _spend(usage.ru_utime + usage.ru_stime)
    for line in lines[:-1]:  # a process that is killed may stop in the middle of the last one
        index, text, count = json.loads(line)
        yield index, text, count


def _serve(outlet: int, data: bytes, password: str | None, seconds: float, first: int) -> None:
    """Write what ``_pages`` yields as lines of JSON, and end this process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C, which the process above ignores, ends this one
        _halve_time()
        with os.fdopen(outlet, "wb") as out:
            _end_after(seconds)
            for told in _pages(data, password, first):
                out.write(json.dumps(told).encode() + b"\n")
                out.flush()
                _end_after(seconds)
    finally:
        os._exit(0)


def _end_after(seconds: float) -> None:
    """End this process after so much processor time, whatever code it runs, unless this is called again."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _halve_time() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (max(1, soft // CPU_SHARE), hard))


def _spend(seconds: float) -> None:
    """Take what another process has used from the time of this one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (max(1, soft - ceil(seconds)), hard))


def _pages(data: bytes, password: str | None, first: int) -> Iterator[tuple[int, str, int]]:
    """(index, text, number of pages) of each page from ``first`` on; nothing of a file that PDFium refuses."""
    import pypdfium2

    with suppress(pypdfium2.PdfiumError):
        document = pypdfium2.PdfDocument(data, password=password)
        for index in range(first, len(document)):
            with suppress(pypdfium2.PdfiumError):
                page = document[index]
                yield index, _text(page.get_textpage()), len(document)
                page.close()


def _text(page: Any) -> str:
    """The text of a text page, with U+FFFD for what its fonts do not tell if the text is no language otherwise."""
    glyphs = list(_glyphs(page))
    text = with_tex_ligatures(laid_out(glyph for glyph, _ in glyphs))
    if sum(is_guessed for _, is_guessed in glyphs) <= GUESSED * len(glyphs) or not doubt(text) > GUESSED:
        return text
    return laid_out(replace(glyph, character=NO_CHARACTER) if guess else glyph for glyph, guess in glyphs)


def _glyphs(text: Any) -> Iterator[tuple[Glyph, bool]]:
    """The characters of a text page in PDFium's order, in which columns follow each other, and which it guessed."""
    from pypdfium2 import raw

    box, left, base = raw.FS_RECTF(), ctypes.c_double(), ctypes.c_double()
    space, high = "", 0
    for index in range(raw.FPDFText_CountChars(text)):
        code = raw.FPDFText_GetUnicode(text, index)
        if code in SPACES and raw.FPDFText_IsGenerated(text, index):
            space += chr(code)
        elif 0xD800 <= code < 0xDC00:
            high = code  # the first half of a pair; the second one follows
        else:
            raw.FPDFText_GetLooseCharBox(text, index, box)
            raw.FPDFText_GetCharOrigin(text, index, left, base)
            character = _character(code, high)
            place = box.left, box.right, base.value, abs(box.top - box.bottom)
            yield Glyph(character, *place, space), bool(raw.FPDFText_HasUnicodeMapError(text, index))
            space, high = "", 0


def _character(code: int, high: int) -> str:
    if code in LINE_HYPHENS:
        return LINE_HYPHEN
    if code in UNNAMED:
        return NO_CHARACTER
    if 0xDC00 <= code < 0xE000:
        return chr(0x10000 + ((high - 0xD800) << 10) + code - 0xDC00) if high else NO_CHARACTER
    return chr(code)
