"""``summarize --by chapter``: a summary of each chapter, each read by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from triforce_chat.cli.engines import compile_ahead, open_session, with_shown_model
from triforce_chat.cli.output import print_json, print_line, screen_of
from triforce_chat.cli.reading import read_all
from triforce_chat.cli.run_info import planned, run_info_of
from triforce_chat.errors import Interrupted, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.chat.events import Tally
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.documents.chapters import Chapter
    from triforce_chat.ui.terminal import Screen


def summarize_chapters(documents: list[str], question: str, options: Options) -> None:
    """Show a summary under each chapter's title, or print one JSON object for each."""
    from triforce_chat.chat.records import answer_object
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.loading.spec import EngineSpec

    if options.jsonl:
        raise UsageError(
            "--by chapter prints one object for each chapter with --json; --jsonl is for one answer"
        )
    screen = screen_of(options)
    compile_ahead(EngineSpec(options.settings), screen)
    parts, automatic = list(_parts(read_all(documents, options, screen))), options.model == AUTO
    options = with_shown_model(options, screen)
    opened, load_s = open_session([], options, screen)
    run_info = run_info_of(options, automatic, opened, load_s)
    for title, chapter, text in parts:
        session = ChatSession(opened.engine, opened.loaded, options.settings, options.system_text)
        session.add(text)
        tally = _summary(session, question, text.title, options, screen)
        if options.json:
            about = {"document": title, "number": chapter.number, "title": chapter.title}
            print_json({**answer_object(tally, planned(run_info, session)), "chapter": about})
        if tally.finished is None or tally.finished.reason == "interrupted":
            raise typer.Exit(Interrupted.exit_code)


def _parts(documents: list[Document]) -> Iterator[tuple[str, Chapter, Document]]:
    """(title of the document, chapter, its text). Raises UsageError for a document without chapters."""
    from triforce_chat.documents.chapters import chapters_of, only

    for document in documents:
        chapters = chapters_of(document)
        if not chapters:
            raise UsageError(f"{document.title} has no chapters that its headings tell; leave --by out")
        for chapter in chapters:
            text = only(document, [chapter])
            yield (
                document.title,
                chapter,
                dataclasses.replace(text, title=f"{document.title}, {chapter.title}"),
            )


def _summary(session: ChatSession, question: str, title: str, options: Options, screen: Screen) -> Tally:
    from triforce_chat.ui.answer import fold_answer, show_answer

    events = session.ask(question, sources=options.json)
    if options.json:
        return fold_answer(events, lambda _event: None)
    print_line(screen.out, f"## {title}\n")
    tally = show_answer(events, screen, title=options.stack, limit=session.context_limit)
    print_line(screen.out, "")
    return tally
