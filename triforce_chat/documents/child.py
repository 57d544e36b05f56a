"""The process that ``apart`` starts: one document comes in, its texts or the reason for a refusal go out."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from triforce_chat.documents.model import Parsed
from triforce_chat.documents.quiet import quiet
from triforce_chat.errors import DocumentError

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends
LOOK_EVERY = 0.5  # seconds between looks at the parent, where the system sends no such signal
MEMORY = 1 << 30  # bytes of address space for any file; Python and the parsers take 150 MiB of it
MEMORY_PER_BYTE = 4  # in addition: the file, the streams in it, the text


def main() -> None:
    """Answer the request on standard input; nothing that a library prints gets in between."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too and ends this process
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    asked = sys.stdin.buffer.read()
    end_with(json.loads(asked.partition(b"\n")[0])["parent"])
    limit(asked)
    with out:
        out.write(answer(asked))
    os._exit(0)  # the memory of millions of small objects need not be put in order first


def end_with(parent: int) -> None:
    """Have this process ended with its parent, since nothing would read its answer any more."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    elif os.name == "posix":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.name == "posix" and os.getppid() != parent:  # it ended before
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)


def limit(asked: bytes) -> None:
    """Bound this process for that request; Windows knows no such bounds, others do not know all of them."""
    try:
        import resource
    except ImportError:
        return
    memory = MEMORY + MEMORY_PER_BYTE * len(asked)
    seconds: int = json.loads(asked.partition(b"\n")[0])["seconds"]
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # the soft one ends it with a signal that tells why
        (resource.RLIMIT_AS, memory, memory),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, hard))


def answer(asked: bytes) -> bytes:
    """The request of ``apart.request``, done: a ``Parsed`` as JSON, ``refused`` or ``damaged``."""
    head, _, data = asked.partition(b"\n")
    wanted = json.loads(head)
    try:
        with quiet():
            parsed = asdict(parser(wanted["kind"], wanted["password"], wanted["ocr"])(data).bounded())
        return _encoded(parsed)
    except DocumentError as error:
        return _encoded({"refused": str(error)})
    except MemoryError:
        return _encoded({"refused": f"needs more than {MEMORY >> 30} GiB of memory to be read; refused"})
    except Exception as error:  # parsers meet hostile bytes: any of their failures is the document's
        return _encoded({"damaged": type(error).__name__})


def parser(kind: str, password: str | None, ocr: bool) -> Callable[[bytes], Parsed]:
    # Imported on use: the library that a parser uses takes most of the time that this process needs to start.
    match kind:
        case "PDF":
            from triforce_chat.documents.pdf import parse_pdf

            return partial(parse_pdf, password=password, ocr=ocr)
        case "EPUB":
            from triforce_chat.documents.epub import parse_epub

            return parse_epub
        case "HTML":
            from triforce_chat.documents.html import parse_html

            return parse_html
        case "Word" | "PowerPoint" | "OpenDocument":
            from triforce_chat.documents import office

            return {"Word": office.parse_docx, "PowerPoint": office.parse_pptx}.get(kind, office.parse_odf)
    from triforce_chat.documents.text import parse_markdown, parse_text

    return parse_markdown if kind == "Markdown" else parse_text


def _encoded(parsed: dict[str, Any]) -> bytes:
    return json.dumps(parsed, ensure_ascii=False).encode("utf-8", "surrogatepass")
