"""``triforce-chat batch``: the same questions about many books, or many requests, answered into a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.ask import planned, run_info_of
from triforce_chat.cli.engines import compile_ahead, open_session, with_shown_model
from triforce_chat.cli.output import print_record, screen_of, show_warning
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.batch.lines import Answerer, Line
    from triforce_chat.batch.output_file import OutputFile
    from triforce_chat.chat.records import RunInfo
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.ui.batch_progress import BatchView
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


def batch(
    paths: BatchFiles,
    options: Options,
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOOK...]", help="Files, folders and patterns; with --requests the documents of all."
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Answer the lines with an error again.")
    ] = False,
) -> None:
    """Answer questions about many books, or a file of requests; the same command goes on after an interruption."""
    from triforce_chat.batch.output_file import NotWritten
    from triforce_chat.batch.run import require_all, stopped, unanswered

    if options.jsonl:
        raise UsageError("--jsonl goes with ask and summarize")
    plan = (BookPlan if paths.requests is None else RequestPlan)(paths, documents or [], options)
    work, interrupted, refused = Work(), False, None
    with plan.output() as output:
        try:
            if retry_failed:
                output.forget_failed()
            left = unanswered(plan.lines, output.answered | output.failed)
            if left:
                interrupted = answer(plan, left, output, options, work)
        except NotWritten as error:
            refused = stopped(error, plan.lines, output)
        except KeyboardInterrupt:
            interrupted = True
        if options.json:
            print_record(summary(plan.lines, output, work))
        if refused:
            raise refused
        require_all(plan.lines, output, interrupted)


@dataclass(slots=True)
class Work:
    """What this run has done; without a view nothing."""

    view: BatchView | None = None
    load_s: float = 0.0  # seconds it took to load the model


class BookPlan:
    """Every question about every book."""

    has_books = True

    def __init__(self, paths: BatchFiles, named: list[str], options: Options) -> None:
        from triforce_chat.batch.books import book_lines, read_lines
        from triforce_chat.documents.files import find_files

        if "-" in named:
            raise UsageError("batch reads files, not standard input")
        questions = [*(paths.question or []), *(read_lines(paths.questions) if paths.questions else [])]
        if not questions:
            raise UsageError("no question given; use --question, --questions or --requests")
        if not all(question.strip() for question in questions):
            raise UsageError("a question is empty")
        files = find_files([*named, *(read_lines(paths.files) if paths.files else [])])
        if not files:
            raise UsageError("no book given; name files, folders or patterns")
        self._out, self._options = paths.out, options
        self.lines: Sequence[Line] = book_lines(files, list(dict.fromkeys(questions)))

    def output(self) -> OutputFile:
        from triforce_chat.batch.books import HEAD, KEY
        from triforce_chat.batch.output_file import OutputFile

        return OutputFile(self._out, KEY, HEAD)

    def documents(self, screen: Screen) -> list[Document]:  # noqa: ARG002
        """None yet: each book is read when it is its turn."""
        return []

    def answerer(self, session: ChatSession, run_info: RunInfo, screen: Screen) -> Answerer:
        from triforce_chat.batch.books import BookAnswerer
        from triforce_chat.chat.session import ChatSession

        options = self._options

        def read(path: str) -> Document:
            document = read_one(path, options, options.pages, several=True)
            if document.warning:
                show_warning(options, screen, f"{document.title}: {document.warning}")
            return document

        def begin() -> ChatSession:
            return ChatSession(session.engine, session.loaded, options.settings, options.system_text)

        return BookAnswerer(begin, read, partial(planned, run_info))


class RequestPlan:
    """Every request of a file, all about the same documents, if any."""

    has_books = False

    def __init__(self, paths: BatchFiles, named: list[str], options: Options) -> None:
        from triforce_chat.batch.requests import request_lines

        assert paths.requests is not None
        if paths.question or paths.questions or paths.files:
            raise UsageError(
                "--requests holds the questions; --question, --questions and --files go without it"
            )
        if "-" in named:
            raise UsageError("batch reads files, not standard input")
        self._out, self._requests, self._named, self._options = paths.out, paths.requests, named, options
        self.lines: Sequence[Line] = request_lines(paths.requests)

    def output(self) -> OutputFile:
        from triforce_chat.batch.output_file import OutputFile
        from triforce_chat.batch.requests import HEAD, KEY

        return OutputFile(self._out, KEY, HEAD)

    def documents(self, screen: Screen) -> list[Document]:
        """Those that the command line names, as for ``serve``."""
        return read_all(self._named, self._options, screen)

    def answerer(self, session: ChatSession, run_info: RunInfo, screen: Screen) -> Answerer:  # noqa: ARG002
        from triforce_chat.batch.requests import RequestAnswerer
        from triforce_chat.serve.adapter import SessionAdapter

        return RequestAnswerer(self._requests, SessionAdapter(session), session.loaded.name)


def answer(
    plan: BookPlan | RequestPlan, lines: Sequence[Line], output: OutputFile, options: Options, work: Work
) -> bool:
    """Load the model and answer, which ``work`` records; returns whether Ctrl-C stopped it."""
    from triforce_chat.batch.run import answer_lines
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.ui.batch_progress import batch_view

    screen = screen_of(options)
    compile_ahead(EngineSpec(options.settings), screen)
    texts, automatic = plan.documents(screen), options.model == AUTO
    options = with_shown_model(options, screen)
    session, work.load_s = open_session(texts, options, screen)
    answerer = plan.answerer(session, run_info_of(options, automatic, session, work.load_s), screen)
    quiet = options.quiet or options.json
    names = [line.name for line in lines]
    work.view = batch_view(names, plan.has_books, screen.err, quiet, options.plain)
    return answer_lines(lines, answerer, output, work.view)


def summary(lines: Sequence[Line], output: OutputFile, work: Work) -> dict[str, Any]:
    """The state of a batch and the work of this run, for ``--json``."""
    ids, view = [line.id for line in lines], work.view
    tokens, seconds = (view.tokens, view.seconds) if view else (0, 0.0)
    answered, failed = (sum(each in known for each in ids) for known in (output.answered, output.failed))
    return {
        "out": str(output.path),
        "lines": len(ids),
        "answered": answered,
        "failed": failed,
        "missing": len(ids) - answered - failed,
        "new": view.done if view else 0,
        "completion_tokens": tokens,
        "timing": {
            "load_s": work.load_s,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds if seconds else 0.0,
        },
    }
