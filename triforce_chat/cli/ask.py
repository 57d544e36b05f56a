"""``triforce-chat ask`` and ``summarize``: one question, answered once or with and without speculation."""

from __future__ import annotations

import dataclasses
import json
import time
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.ending import end
from triforce_chat.cli.engines import (
    begin_on_gpu,
    compile_ahead,
    import_ahead,
    index_ahead,
    open_session,
    with_shown_model,
)
from triforce_chat.cli.options import PARALLEL, Documents, Parallel
from triforce_chat.cli.output import print_json, screen_of, show_warning
from triforce_chat.cli.reading import read_all
from triforce_chat.cli.run_info import planned, run_info_of
from triforce_chat.errors import ExactnessError, Interrupted, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.chat.events import Tally
    from triforce_chat.chat.records import RunInfo
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.ui.terminal import Screen

Compare = Annotated[
    bool,
    typer.Option("--compare-autoregressive", help="Answer with and without speculation, side by side."),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Questions:
    """Many questions about the same documents."""

    questions: Annotated[
        Path | None, typer.Option(help="File with one question per line; all arguments are documents.")
    ] = None
    parallel: Parallel = PARALLEL


class Division(StrEnum):
    """What a document is divided into."""

    CHAPTER = "chapter"


By = Annotated[
    Division | None, typer.Option("--by", help="Summarize each chapter by itself, under its title.")
]


def summarize(
    documents: Documents, options: Options, compare_autoregressive: Compare = False, by: By = None
) -> None:
    """Summarize documents."""
    from triforce_chat.prompts import prompt

    # A summary is of the whole; its prompt's words would find passages that merely share them.
    options, question = dataclasses.replace(options, passages=0), prompt("summarize")
    if by is None:
        answer(documents, question, options, compare_autoregressive, of_the_whole=True)
    elif compare_autoregressive:
        raise UsageError(
            "--by chapter answers once for each chapter; --compare-autoregressive compares one answer"
        )
    else:
        from triforce_chat.cli.by_chapter import summarize_chapters

        summarize_chapters(documents, question, options)


def ask(
    arguments: Annotated[
        list[str], typer.Argument(metavar='[DOC...] "QUESTION"', help="Documents, then the question.")
    ],
    options: Options,
    several: Questions,
    compare_autoregressive: Compare = False,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer in JSON that follows the JSON Schema in this file."),
    ] = None,
) -> None:
    """Ask a question about documents, or with --questions many at once."""
    if several.questions:
        refuse_question(arguments[-1])
        from triforce_chat.cli.ask_several import answer_several

        form = None if schema is None else read_schema(schema)
        answer_several(arguments, several.questions, several.parallel, options, compare_autoregressive, form)
        return
    *documents, question = arguments
    if not question.strip():
        raise UsageError(f"the question is empty; {usage(documents)}")
    if is_document(question):
        raise UsageError(f"no question given, only documents; {usage(arguments)}")
    refuse_loose_words(documents, question)
    answer(
        documents, question, options, compare_autoregressive, None if schema is None else read_schema(schema)
    )


def refuse_question(argument: str) -> None:
    """Raise UsageError for a question beside ``--questions``, where all arguments are documents."""
    from glob import glob

    looks_so = argument.rstrip().endswith("?") or " " in argument.strip()
    if looks_so and not is_document(argument) and not glob(argument):
        raise UsageError(
            f"{argument}: no such file; with --questions all arguments are documents: "
            "write this question into that file, too"
        )


def refuse_loose_words(documents: list[str], question: str) -> None:
    """Raise UsageError if a shell has split a question that was not quoted, so that words of it stand for documents."""
    words = [each for each in documents if each.isalpha() and not is_document(each)]
    if words and documents[-1] == words[-1] and not any(map(str.isspace, question)):
        raise UsageError(
            f"{words[-1]}: no such file; if it is a word of the question, put the question in quotes; "
            f"{usage([each for each in documents if each not in words])}"
        )


def usage(documents: list[str]) -> str:
    """How to ask a question about these documents."""
    return f'use: triforce-chat ask {"".join(f"{quote(each)} " for each in documents)}"QUESTION"'


def read_schema(path: Path) -> dict[str, Any]:
    """The JSON Schema in a file. Raises UsageError."""
    try:
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON") from None
    if not isinstance(read, dict):
        raise UsageError(f"{path}: a JSON Schema is an object")
    return read


def is_document(text: str) -> bool:
    """True for standard input, for a file or a folder that exists, and for an address in the web."""
    from triforce_chat.documents.addresses import is_url

    try:
        return text == "-" or is_url(text) or Path(text).exists()
    except (OSError, ValueError):  # too long or too odd for a path
        return False


def answer(
    documents: list[str],
    question: str,
    options: Options,
    compare: bool,
    schema: dict[str, Any] | None = None,
    of_the_whole: bool = False,
) -> None:
    """Answer one question in the form that the options ask for, and in JSON of the ``schema`` if there is one.

    ``of_the_whole``: the answer is worth little if only a part of the documents is seen.
    """
    from triforce_chat.ui.answers import Answered

    session, options, screen, run_info = opened(documents, options)
    eviction = session.settings.eviction
    if of_the_whole and eviction and session.context_used > eviction.left:
        show_warning(
            options,
            screen,
            f"the beginning will be forgotten: of {session.context_used:,} tokens, --endless keeps at most "
            f"{eviction.keep:,}",
        )
    session.schema = schema
    show = compare_once if compare else answer_once
    made = show(session, question, options, screen, run_info)
    end([Answered(tally, None) for tally in made], as_schema=schema is not None)


def opened(
    documents: list[str], options: Options, sequences: int = 1
) -> tuple[ChatSession, Options, Screen, RunInfo]:
    """A conversation about documents, with the options and the screen that it goes by.

    ``sequences``: most questions that are answered at once.
    """
    from triforce_chat.loading.spec import EngineSpec

    screen = screen_of(options)
    begin_on_gpu(options.settings)
    # Before this thread waits for the driver.
    import_ahead()
    compile_ahead(EngineSpec(options.settings, sequences=sequences), screen)
    texts, automatic = read_all(documents, options, screen), options.model == AUTO
    index_ahead(texts, options)
    options = with_shown_model(options, screen)
    session, load_s = open_session(texts, options, screen)
    return session, options, screen, run_info_of(options, automatic, session, load_s)


def answer_once(
    session: ChatSession, question: str, options: Options, screen: Screen, run_info: RunInfo
) -> list[Tally]:
    """Show the answer, print its events or its record; returns its figures."""
    from triforce_chat.chat.records import answer_object, event_object
    from triforce_chat.ui.answer import fold_answer, show_answer
    from triforce_chat.ui.notify import LONG, notify

    as_json = options.json or options.jsonl
    events = session.ask(question, sources=as_json or screen.detail != "bare")  # only if they are shown
    print_event = print_json if options.jsonl else ignore
    if as_json:
        tally = fold_answer(events, lambda event: print_event(event_object(event)))
        if options.json:
            print_json(answer_object(tally, planned(run_info, session)))
    else:
        began = time.monotonic()
        tally = show_answer(
            events,
            screen,
            title=options.stack,
            limit=session.context_limit,
            most=session.settings.max_tokens,
        )
        if screen.detail == "bare":
            advise(session, question, tally.text, options, screen)
        if session.schema is None:  # otherwise the error at the end says it
            show_remedy(tally, options, screen)
        if time.monotonic() - began >= LONG:
            notify(options.notify, "answered", screen)
    return [tally]


def advise(session: ChatSession, question: str, answer: str, options: Options, screen: Screen) -> None:
    """Say on stderr where the question's words stand if the answer denies: without sources nothing else says it."""
    from triforce_chat.chat.denial import is_denial, standing
    from triforce_chat.ui.source_lines import standing_line

    for words in standing(question, session.documents) if is_denial(answer) else ():
        show_warning(options, screen, standing_line(words))


def show_remedy(tally: Tally, options: Options, screen: Screen) -> None:
    """Say how to get the whole of an answer that was cut short."""
    from triforce_chat.ui.formatting import UNATTENDED_REMEDIES

    remedy = tally.finished and UNATTENDED_REMEDIES.get(tally.finished.reason)
    if remedy:
        show_warning(options, screen, remedy)


def compare_once(
    session: ChatSession, question: str, options: Options, screen: Screen, run_info: RunInfo
) -> list[Tally]:
    """Answer with and without speculation; returns the figures of both. Raises ExactnessError."""
    from triforce_chat.chat.records import comparison_object, event_object
    from triforce_chat.ui.compare import fold_comparison, show_comparison

    items, print_event = session.compare(question), print_json if options.jsonl else ignore
    if options.json or options.jsonl:
        result = fold_comparison(items, lambda side, event: print_event(event_object(event, side)))
        if result is not None and options.json:
            print_json(comparison_object(result, planned(run_info, session)))
    else:
        result = show_comparison(items, screen, limit=session.context_limit)
    if result is None:
        raise typer.Exit(Interrupted.exit_code)
    if result.mismatches:
        raise ExactnessError(f"{result.mismatches} tokens differ from plain decoding beyond rounding")
    return [result.speculative, result.autoregressive]


def ignore(_event: dict[str, Any]) -> None:
    """Receives the events that are not printed."""
