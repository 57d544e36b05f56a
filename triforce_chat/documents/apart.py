"""Parsing in a process of its own: what a hostile file costs in time and memory ends with that process.

The parsers are the libraries of others and the files are anybody's, so no list of known tricks is complete; the
limits of a process hold whatever the trick is. It starts in 40 ms, and the parsers are imported there only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from triforce_chat.documents.model import Heading, Parsed
from triforce_chat.errors import DocumentError

SECONDS = 25  # of processor time for any file; a PDF of a hundred pages takes three
SECONDS_PER_MIB = 5  # in addition for the kinds of long books; dense text takes two
LONG_KINDS = frozenset({"PDF", "EPUB", "Word", "PowerPoint", "OpenDocument"})
STALLED = 4  # times as long as that on the clock, after which waiting ends
OUT_OF_TIME = -getattr(signal, "SIGXCPU", 0)  # how such a process ends
_START = "import sys; sys.path = sys.argv[1:]; from triforce_chat.documents.child import main; main()"


class Damaged(Exception):
    """The bytes are not what their kind promises."""


def parse_apart(data: bytes, kind: str, password: str | None, ocr: bool) -> Parsed:
    """Parse ``data`` as ``kind`` in a process with limits of time and memory.

    Raises ``DocumentError`` for what is refused, ``Damaged`` for what cannot be parsed. Ctrl-C ends it at once.
    """
    command = [sys.executable, "-I", "-c", _START, *sys.path]
    seconds = patience(kind, len(data))
    clock = (
        None if ocr else STALLED * seconds
    )  # tesseract takes seconds for a page, and has a limit of its own
    try:
        done = subprocess.run(
            command,
            input=request(data, kind, password, ocr),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=clock,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise late(seconds) from None
    if done.returncode == OUT_OF_TIME:
        raise late(seconds)
    return parsed(done.stdout)


def patience(kind: str, size: int) -> int:
    """Seconds of work after which the reading of ``size`` bytes is given up."""
    return SECONDS + (SECONDS_PER_MIB * size >> 20 if kind in LONG_KINDS else 0)


def late(seconds: int) -> DocumentError:
    return DocumentError(f"not read within {seconds} s; refused")


def request(data: bytes, kind: str, password: str | None, ocr: bool = False) -> bytes:
    """What the process reads from its standard input, where no other user can see a password."""
    asked = {"kind": kind, "password": password, "ocr": ocr, "seconds": patience(kind, len(data))}
    asked["parent"] = os.getpid()
    return json.dumps(asked).encode() + b"\n" + data


def parsed(answer: bytes) -> Parsed:
    """What the process said; one that died without a word did so because of the file."""
    try:
        fields: dict[str, Any] = json.loads(answer.decode("utf-8", "surrogatepass"))
    except ValueError:
        raise Damaged from None
    if "refused" in fields:
        raise DocumentError(fields["refused"])
    if "damaged" in fields:
        raise Damaged(fields["damaged"])
    tuples = {name: tuple(fields[name]) for name in ("texts", "broken", "notices", "garbled")}
    headings = tuple(Heading(**each) for each in fields["headings"])
    return Parsed(**{**fields, **tuples, "headings": headings})
