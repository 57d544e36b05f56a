"""``summarize --by chapter``: a summary of each chapter, each read by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triforce_chat.cli.ending import end
from triforce_chat.cli.engines import compile_ahead, open_session, with_shown_model
from triforce_chat.cli.output import print_json, print_line, screen_of
from triforce_chat.cli.reading import read_all
from triforce_chat.cli.run_info import planned, run_info_of
from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.chat.events import Tally
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.documents.chapters import Chapter

AT_ONCE = 8  # summaries


def summarize_chapters(documents: list[str], question: str, options: Options) -> None:
    """Show a summary under each chapter's title, or print one JSON object for each."""
    from triforce_chat.chat.records import answer_object
    from triforce_chat.chat.together import ask_all
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.ui.answers import fold_answers, show_answers

    if options.jsonl:
        raise UsageError(
            "--by chapter prints one object for each chapter with --json; --jsonl is for one answer"
        )
    screen = screen_of(options)
    compile_ahead(EngineSpec(options.settings, sequences=AT_ONCE), screen)
    parts, automatic = list(_parts(read_all(documents, options, screen))), options.model == AUTO
    options = with_shown_model(options, screen)
    opened, load_s = open_session([], options, screen)
    run_info = run_info_of(options, automatic, opened, load_s)
    asked = [(_about(text, opened, options), question) for _, _, text in parts]
    titles = [text.title for _, _, text in parts]

    def print_summary(number: int, tally: Tally, error: TriforceError | None) -> None:
        title, chapter, _ = parts[number]
        about = {"document": title, "number": chapter.number, "title": chapter.title}
        made = answer_object(tally, planned(run_info, asked[number][0]), error)
        print_json({**made, "chapter": about})

    def print_heading(number: int) -> None:
        if number:
            print_line(screen.out, "")
        print_line(screen.out, f"## {titles[number]}\n")

    items = ask_all(asked, AT_ONCE, sources=options.json)
    if options.json:
        end(fold_answers(items, titles, lambda _item: None, print_summary))
    else:
        end(show_answers(items, titles, screen, print_heading))


def _about(text: Document, opened: ChatSession, options: Options) -> ChatSession:
    """A conversation about one chapter. Raises DoesNotFit."""
    from triforce_chat.chat.session import ChatSession

    session = ChatSession(opened.engine, opened.loaded, options.settings, options.system_text)
    session.add(text)
    return session


def _parts(documents: list[Document]) -> Iterator[tuple[str, Chapter, Document]]:
    """(title of the document, chapter, its text). Raises UsageError for a document without chapters."""
    from triforce_chat.documents.chapters import chapters_of, only

    for document in documents:
        chapters = chapters_of(document)
        if not chapters:
            raise UsageError(
                f"{document.title} has no chapters that can be recognized by its headings; leave out --by"
            )
        for chapter in chapters:
            text = only(document, [chapter])
            yield (
                document.title,
                chapter,
                dataclasses.replace(text, title=f"{document.title}, {chapter.title}"),
            )
