"""``triforce-chat chat``: a conversation in the terminal, recorded as a session."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.engines import compile_ahead, open_session, with_model
from triforce_chat.cli.options import given_flags
from triforce_chat.cli.output import screen_of, show_notes, show_warning
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.chat.conversation import Conversation
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.storage.sessions.session_opener import Restored, SessionOpener
    from triforce_chat.ui.terminal import Screen


def chat(
    command_line: typer.Context,
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Documents to start with.")
    ] = None,
    last: Annotated[bool, typer.Option("--continue", "-c", help="Continue the last session.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Continue this session, or start it."),
    ] = None,
) -> None:
    """Talk about documents, turn by turn; /help lists the commands."""
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.storage.sessions.session_opener import SessionOpener
    from triforce_chat.ui.repl import Labels, Repl

    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl go with ask and summarize")
    if last and name is not None:
        raise UsageError("--continue takes the last session; omit it to name one with --session")
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if "-" in (documents or []):
        raise UsageError("chat reads your questions from standard input; give it the document as a file")
    screen = screen_of(options)
    with SessionOpener(name, last, partial(show_warning, options, screen)) as opener:
        options = opener.options(options, given_flags(command_line))
        compile_ahead(EngineSpec(options.settings), screen)
        texts = read_all(documents or [], options, screen)
        automatic = options.model == AUTO
        options = with_model(options, screen)
        label = f"{options.model} (auto)" if automatic else options.model
        session, _ = open_session([], options, screen)
        if session.loaded.stored:
            label = f"{label} in {session.loaded.format}"
        repl = Repl(
            begin(opener, session, texts, options, screen),
            lambda path, pages: read_one(path, whole(options), pages),
            screen,
            lambda: Labels(label, session.settings.stack),
            writable_history(),
            opener.saved_sessions,
        )
        code = repl.run() if interactive else repl.run_lines(sys.stdin or ())
    if code:
        raise typer.Exit(code)


def whole(options: Options) -> Options:
    """The options for a document that is added later: the chapters wanted are those of the first ones."""
    return dataclasses.replace(options, chapters=None, until=None)


def begin(
    opener: SessionOpener, session: ChatSession, documents: list[Document], options: Options, screen: Screen
) -> Conversation:
    """Restore the continued session, if any, and add the documents that it lacks. Raises DoesNotFit."""
    conversation = opener.conversation(session)
    restored = opener.restore(session)
    if restored:
        show_restored(restored, options, screen)
    for document in documents:
        if opener.has(document):
            show_notes([f"{document.title} is in the session already"], screen)
        else:
            conversation.add(document)
    return conversation


def show_restored(restored: Restored, options: Options, screen: Screen) -> None:
    """Show which session is continued, and what has changed since."""
    from triforce_chat.ui import formatting

    if restored.other_models:
        others = ", ".join(restored.other_models)
        again = restored.retokenized
        how = (
            "its texts were tokenized again"
            if again
            else "the vocabulary is the same, so its tokens are valid"
        )
        show_warning(options, screen, f"{restored.name} was made with {others}; {how}")
    used = formatting.local_time(restored.used)
    notes = [f"session {restored.name}: {formatting.count(restored.turns, 'turn')}, last used {used}"]
    if restored.unanswered is not None:
        notes.append(f"its last question has no answer: {restored.unanswered}")
    show_notes(notes, screen)


def writable_history() -> Path | None:
    """The file that remembers typed questions; None where its folder cannot be made."""
    from triforce_chat.settings.paths import history_file

    try:
        history_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return history_file()
