"""``triforce-chat chat``: a conversation in the terminal, recorded as a session."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.complete import answering
from triforce_chat.cli.engines import begin_on_gpu, compile_ahead, open_session, with_model
from triforce_chat.cli.options import given_flags
from triforce_chat.cli.output import screen_of, show_notes, show_warning
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO, OFF

if TYPE_CHECKING:
    from triforce_chat.chat.conversation import Conversation
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.documents import Document
    from triforce_chat.storage.sessions.session_opener import Restored, SessionOpener
    from triforce_chat.ui.command_table import Next, Surroundings
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
    """Chat about documents; /help lists the commands."""
    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl are for ask and summarize")
    if last and name is not None:
        raise UsageError("--continue takes the last session; omit it to name one with --session")
    documents = documents or []
    if options.endless != OFF:  # whose stream of questions may be named
        documents = [each for each in documents if each != "-"]
    if "-" in documents:
        raise UsageError("chat reads your questions from standard input; give it the document as a file")
    given = frozenset(given_flags(command_line))
    start: Start | int = Start(options, name, last, tuple(documents), given=given)
    while isinstance(start, Start):
        start = talk(start)
        free_memory()  # of the weights, before others are loaded
    if start:
        raise typer.Exit(start)


@dataclass(frozen=True, slots=True)
class Start:
    """With what a conversation begins."""

    options: Options
    name: str | None = None  # of its session
    last: bool = False
    paths: tuple[str, ...] = ()
    texts: tuple[Document, ...] = ()  # documents that were read already
    given: frozenset[str] = frozenset()  # options that a session's own do not replace
    instead: Start | None = None  # if this one fails
    code: int = 0  # of the last error so far


def talk(start: Start) -> Start | int:
    """One conversation, up to the next one or to the exit code."""
    from triforce_chat.storage.sessions.session_opener import SessionOpener

    screen = screen_of(start.options)
    try:
        opener = SessionOpener(start.name, start.last, partial(show_warning, start.options, screen))
    except TriforceError as error:
        return instead(start, error, screen)
    with opener:
        try:
            return talk_in(opener, start, screen)
        except CannotStart as failed:
            return instead(start, failed.cause, screen)


def instead(start: Start, error: TriforceError, screen: Screen) -> Start:
    """The conversation to go back to if ``start`` fails. Raises ``error`` if there is none."""
    if start.instead is None:
        raise error
    show_warning(start.options, screen, str(error))
    return dataclasses.replace(start.instead, code=error.exit_code)


class CannotStart(Exception):
    """A conversation could not begin, for instance because its model does not fit into memory."""

    def __init__(self, cause: TriforceError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def talk_in(opener: SessionOpener, start: Start, screen: Screen) -> Start | int:
    """One conversation in the session that ``opener`` has opened. Raises CannotStart."""
    from triforce_chat.ui.repl import Labels, Preferences, Repl

    try:
        options = opener.options(start.options, start.given)
        session, conversation, label = opened(opener, start, options, screen)
    except TriforceError as error:
        raise CannotStart(error) from error
    options = dataclasses.replace(options, model=session.settings.model)
    repl = Repl(
        conversation,
        lambda path, pages: read_one(path, whole(options), pages),
        screen,
        lambda: Labels(label, session.settings.stack),
        writable_history(),
        surroundings(opener, conversation, label),
        Preferences(options.vi, options.notify),
    )
    interactive = sys.stdin is not None and sys.stdin.isatty()
    code = repl.run() if interactive else repl.run_lines(sys.stdin or ())
    code = code or start.code
    if repl.next is None:
        return code
    here = dataclasses.replace(
        start, options=options, last=False, paths=(), code=code, **place_of(opener, conversation)
    )
    return following(repl.next, here)


def opened(
    opener: SessionOpener, start: Start, options: Options, screen: Screen
) -> tuple[ChatSession, Conversation, str]:
    """The session, the conversation in it, and its model as the chat shows it. Raises TriforceError."""
    from triforce_chat.loading.spec import EngineSpec

    begin_on_gpu(options.settings)
    compile_ahead(EngineSpec(options.settings), screen)
    texts = [*start.texts, *read_all(list(start.paths), options, screen)]
    automatic = options.model == AUTO
    options = with_model(options, screen)
    session, _ = open_session([], options, screen, coming=texts)
    conversation = begin(opener, session, texts, options, screen)
    return session, conversation, model_label(options, session, automatic)


def place_of(opener: SessionOpener, conversation: Conversation) -> dict[str, Any]:
    """Where a conversation is kept: in its session, or while it has no turn, in its documents."""
    name = opener.current
    return {"name": name, "texts": () if name else tuple(conversation.documents)}


def following(wanted: Next, here: Start) -> Start:
    """The start that a user wants after ``here``."""
    if wanted.session is not None:
        return dataclasses.replace(here, name=wanted.session, texts=(), instead=here)
    options = dataclasses.replace(here.options, model=wanted.model or here.options.model, draft=AUTO)
    given = here.given | {"model", "draft"}
    return dataclasses.replace(here, options=options, given=given, instead=here)


def model_label(options: Options, session: ChatSession, automatic: bool) -> str:
    """The model as the chat shows it."""
    label = f"{options.model} (auto)" if automatic else options.model
    loaded = session.loaded
    formats = [loaded.format] if loaded.stored or loaded.streamed else []
    if loaded.streamed:
        formats += [f"from layer {loaded.streamed.resident + 1} on streamed from host memory"]
    formats += [f"keys and values in {loaded.kv_format}"] if loaded.kv_format else []
    label = f"{label} in {', '.join(formats)}" if formats else label
    eviction = session.settings.eviction
    return f"{label}, endless by {eviction.policy} in {eviction.keep:,} tokens (lossy)" if eviction else label


def surroundings(opener: SessionOpener, conversation: Conversation, label: str) -> Surroundings:
    """What the commands of a chat know of the program around it."""
    from triforce_chat.ui.command_table import Surroundings

    def check(wanted: Next) -> None:
        if wanted.model is not None:
            if conversation.turns and opener.store is None:
                raise UsageError("this chat is not saved, so its turns cannot move to another model")
            from triforce_chat.models.registry import resolve

            resolve(wanted.model)
        if wanted.session is not None:
            if opener.store is None:
                raise UsageError("this chat is not saved, so there are no other sessions")
            opener.require_free(wanted.session)

    return Surroundings(opener.saved_sessions, lambda: answering(""), lambda: label, check)


def free_memory() -> None:
    """Free the weights and caches of the last conversation."""
    import gc

    gc.unfreeze()
    gc.collect()


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
        show_last_turn(session, screen)
    elif opener.begun:  # which may be a mistyped name
        show_notes([f"{opener.begun} is a new session; /sessions lists the others"], screen)
    for document in documents:
        if opener.has(document):
            show_notes([f"{document.title} is already in the session"], screen)
        else:
            conversation.add(document)
    return conversation


def show_restored(restored: Restored, options: Options, screen: Screen) -> None:
    """Show which session is continued, and what has changed since."""
    from triforce_chat.ui import formatting
    from triforce_chat.ui.clean import one_line
    from triforce_chat.ui.command_table import SHOWN_QUESTION

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
        question = formatting.shorten(one_line(restored.unanswered), SHOWN_QUESTION)
        notes.append(f"its last question has no answer: {question}")
    show_notes(notes, screen)


def show_last_turn(session: ChatSession, screen: Screen) -> None:
    """Show the last question and its answer, so that the reader knows where the chat stopped."""
    from triforce_chat.ui.answer import show_turn

    if session.turns:
        show_turn(session.turns[-1], screen)


def writable_history() -> Path | None:
    """The file that remembers typed questions; None where its folder cannot be made."""
    from triforce_chat.settings.paths import history_file

    try:
        history_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return history_file()
