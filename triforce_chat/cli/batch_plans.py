"""The two kinds of batches: questions about books, and files of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.reading import read_all
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.batch.lines import Line
    from triforce_chat.batch.output_file import OutputFile
    from triforce_chat.documents import Document
    from triforce_chat.ui.terminal import Screen


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What a batch is made of, and where its answers go."""

    out: Annotated[Path, typer.Option(help="File that answers are appended to, as JSON lines.")]
    question: Annotated[
        list[str] | None, typer.Option(help="A question about every book; may be repeated.")
    ] = None
    questions: Annotated[Path | None, typer.Option(help="File with one question per line.")] = None
    files: Annotated[Path | None, typer.Option(help="File with one book's path per line.")] = None
    requests: Annotated[
        Path | None, typer.Option(help="File of requests in the format of OpenAI's Batch API.")
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Process only part I of N, counted from 0; a book is always in the same part."
        ),
    ] = None


class BookPlan:
    """Every question about every book; empty ones of folders and patterns are skipped with a line for each."""

    has_books = True

    def __init__(self, paths: BatchFiles, named: list[str]) -> None:
        from triforce_chat.batch.books import book_lines, read_lines
        from triforce_chat.documents.files import find_files, named_themselves, read_found
        from triforce_chat.documents.reader import not_empty

        if "-" in named:
            raise UsageError("batch reads files, not standard input")
        questions = [*(paths.question or []), *(read_lines(paths.questions) if paths.questions else [])]
        if not questions:
            raise UsageError("no question given; use --question, --questions or --requests")
        if not all(question.strip() for question in questions):
            raise UsageError("a question is empty")
        named = [*named, *(read_lines(paths.files) if paths.files else [])]
        found, own = find_files(named), named_themselves(named)
        if not found:
            raise UsageError("no book given; name files, folders or patterns")
        # An empty file that was named itself gets lines with an error, as all that cannot be read.
        files, self.skipped = read_found(found, [], lambda file: file if file in own else not_empty(file))
        self._out = paths.out
        self.lines: Sequence[Line] = book_lines(files, list(dict.fromkeys(questions)))

    def output(self) -> OutputFile:
        from triforce_chat.batch.books import HEAD, KEY
        from triforce_chat.batch.output_file import OutputFile

        return OutputFile(self._out, KEY, HEAD)

    def documents(self, options: Options, screen: Screen) -> list[Document]:  # noqa: ARG002
        """None yet: each book is read when it is its turn."""
        return []


class RequestPlan:
    """Every request of a file, all about the same documents, if any."""

    has_books = False
    skipped: Sequence[str] = ()

    def __init__(self, paths: BatchFiles, named: list[str]) -> None:
        from triforce_chat.batch.requests import request_lines

        assert paths.requests is not None
        if paths.question or paths.questions or paths.files:
            raise UsageError(
                "--requests contains the questions; leave out --question, --questions and --files"
            )
        if "-" in named:
            raise UsageError("batch reads files, not standard input")
        self._out, self._named = paths.out, named
        self.lines: Sequence[Line] = request_lines(paths.requests)

    def output(self) -> OutputFile:
        from triforce_chat.batch.output_file import OutputFile
        from triforce_chat.batch.requests import HEAD, KEY

        return OutputFile(self._out, KEY, HEAD)

    def documents(self, options: Options, screen: Screen) -> list[Document]:
        """Those that the command line names, as for ``serve``."""
        from triforce_chat.batch.fingerprint import require_file

        for path in self._named:
            require_file(path)
        return read_all(self._named, options, screen)


Plan = BookPlan | RequestPlan


def plan_of(paths: BatchFiles, named: list[str]) -> Plan:
    """What the command line asks for. Raises UsageError."""
    from triforce_chat.batch.shard import Shard

    shard = None if paths.shard is None else Shard.parse(paths.shard)
    plan = (BookPlan if paths.requests is None else RequestPlan)(paths, named)
    if shard is not None:
        plan.lines = shard.of(plan.lines)
    return plan
