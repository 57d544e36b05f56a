"""Reading the documents that a command names."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from triforce_chat.cli.output import show_notes, show_warning
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.documents import Document
    from triforce_chat.ui.terminal import Screen


def read_all(paths: list[str], options: Options, screen: Screen) -> list[Document]:
    """Read documents, folders and patterns before anything slow is loaded, and show their warnings.

    Empty files of a folder or a pattern are skipped with a warning. Raises DocumentError and UsageError.
    """
    from triforce_chat.documents.files import find_files, read_found
    from triforce_chat.documents.reader import STDIN
    from triforce_chat.ui.terminal import is_terminal

    if paths.count(STDIN) > 1:
        raise UsageError("standard input can be read only once")
    if STDIN in paths and sys.stdin is not None and is_terminal(sys.stdin):
        show_notes(["type or paste the text; Ctrl-D on a line of its own ends it"], screen)
    files = find_files(paths)
    busy = screen.err.status("reading images") if options.ocr and screen.detail == "live" else nullcontext()
    with busy:
        read = partial(read_one, options=options, pages=options.pages, several=len(files) > 1)
        documents, skipped = read_found(files, paths, read)
    warnings = [f"{document.title}: {document.warning}" for document in documents if document.warning]
    for line in (*skipped, *warnings):
        show_warning(options, screen, line)
    return documents


def read_one(path: str, options: Options, pages: str | None, several: bool = False) -> Document:
    """Read one document and keep the chapters and pages wanted.

    With ``several`` documents, a page range is cut to the pages that this one has.
    """
    from triforce_chat.documents import parse_pages, read
    from triforce_chat.documents.chapters import chosen, only, until

    ranges = parse_pages(pages) if pages else None
    document = read(path, password=options.password, ocr=options.ocr)
    if options.chapters is not None:
        document = only(document, chosen(document, options.chapters))
    if options.until is not None:
        document = until(document, options.until)
    if ranges is None:
        return document
    return document.select([r.within(document.pages[-1].number) for r in ranges] if several else ranges)
