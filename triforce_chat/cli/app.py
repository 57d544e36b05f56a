"""The commands. Only this module wires everything together; it imports torch when a command needs it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from triforce_chat import __version__
from triforce_chat.cli import bench, cache, config, doctor, evaluate, models, plan, sessions, train
from triforce_chat.cli.options import (
    Documents,
    Options,
    command,
    given,
    open_answering,
    print_json,
    print_record,
    read_all,
    read_one,
    screen_of,
    show_notes,
    show_warning,
)
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.errors import ExactnessError, Interrupted, UsageError
from triforce_chat.settings.umask import keep_private

if TYPE_CHECKING:
    from triforce_chat.chat.session import Session
    from triforce_chat.documents import Document
    from triforce_chat.engine.protocol import Answering
    from triforce_chat.ui.terminal import Screen

EXIT_CODES = """Exit codes: 0 success, 1 unexpected error, 2 usage, 3 unreadable document, 4 does not fit the \
context, 5 model unavailable, 6 out of memory, 7 exactness failure, 8 a rank of --tp was lost, 130 interrupted."""

app = typer.Typer(
    help="Chat with whole books: exact hierarchical speculative decoding on your own machine.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cache.app, name="cache")
app.add_typer(config.app, name="config")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(train.app, name="train")

Compare = Annotated[
    bool, typer.Option("--compare-autoregressive", help="Answer again plainly, side by side.")
]


@command(app)
def summarize(documents: Documents, options: Options, compare_autoregressive: Compare = False) -> None:
    """Summarize documents."""
    from triforce_chat.prompts import prompt

    answer(documents, prompt("summarize"), options, compare_autoregressive)


@command(app)
def ask(
    arguments: Annotated[
        list[str], typer.Argument(metavar='[DOC...] "QUESTION"', help="Documents, question.")
    ],
    options: Options,
    compare_autoregressive: Compare = False,
) -> None:
    """Ask one question about documents."""
    *documents, question = arguments
    if not documents and is_document(question):
        raise UsageError(f'no question given; use: triforce-chat ask {question} "QUESTION"')
    if not question.strip():
        raise UsageError("the question is empty")
    answer(documents, question, options, compare_autoregressive)


def is_document(text: str) -> bool:
    try:
        return text == "-" or Path(text).is_file()
    except (OSError, ValueError):  # too long or too odd for a path
        return False


@command(app)
def chat(
    typed: typer.Context,
    options: Options,
    documents: Annotated[list[str] | None, typer.Argument(metavar="[DOC...]", help="To begin with.")] = None,
    last: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last session.")] = False,
    name: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Go on with this session, or begin it.")
    ] = None,
) -> None:
    """Talk about documents, turn by turn; /help lists the commands."""
    from triforce_chat.storage.sessions.desk import Desk
    from triforce_chat.ui.repl import Labels, Repl

    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl go with ask and summarize")
    if last and name is not None:
        raise UsageError("--continue goes on with the last session; leave it out to name one with --session")
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if "-" in (documents or []):
        raise UsageError("chat reads your questions from standard input; give it the document as a file")
    screen = screen_of(options)
    texts = read_all(documents or [], options, screen)
    with Desk(name, last, partial(show_warning, options, screen)) as desk:
        options = desk.options(options, given(typed))
        session, _ = open_session([], options, screen)
        repl = Repl(
            desk.conversation(session, texts, lambda line: show_notes([line], screen)),
            lambda path, pages: read_one(path, options, pages),
            screen,
            lambda: Labels(options.model, session.settings.stack),
            history_file(),
            desk.known,
        )
        code = repl.run() if interactive else repl.run_lines(sys.stdin or ())
    if code:
        raise typer.Exit(code)


@command(app)
def serve(
    options: Options,
    documents: Annotated[list[str] | None, typer.Argument(metavar="[DOC...]", help="To talk about.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="TRIFORCE_CHAT_TOKEN", help="What clients must send as API key.")
    ] = None,
) -> None:
    """Answer programs over HTTP, as OpenAI's chat completions do."""
    from triforce_chat.serve.place import Place, require_extra, url

    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl go with ask and summarize")
    require_extra()
    place, screen = Place(host, port, token), screen_of(options)
    with place.bound() as listener:
        session, _ = open_session(read_all(documents or [], options, screen), options, screen)
        read_ahead(session, screen, options.stack)
        from triforce_chat.serve.run import serve as run

        listener.listen()
        print(f"listening on {url(listener)}", flush=True)
        run(session, listener, token, None if options.quiet else screen.err)


def read_ahead(session: Session, screen: Screen, title: str) -> None:
    """Bring the documents into the cache before the first question."""
    from triforce_chat.ui.answer import show_answer

    if session.documents:
        tally = show_answer(session.prefill(), screen, title=title, limit=session.context_limit)
        if tally.finished:  # by Ctrl-C: a prefill has no end of its own
            raise Interrupted("interrupted")


@command(app)
def verify(
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Text to test on.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per stack and test.")] = 256,
) -> None:
    """Test that speculative decoding is exact here; --stack auto tests every stack."""
    from triforce_chat.chat.records import outcome_object
    from triforce_chat.prompts import prompt
    from triforce_chat.ui.verdicts import show_outcome

    screen = screen_of(options)
    texts = [document.text for document in read_all(documents or [], options, screen)]
    # A budget far below the text's length, or the retrieval cache would hold everything and prove nothing.
    settings = dataclasses.replace(
        options.settings,
        dtype="float32" if options.dtype == "auto" else options.dtype,
        budget=options.budget or 128,
    )
    from triforce_chat.loading.spec import EngineSpec

    engine, target, _ = open_answering(
        EngineSpec(settings), screen, warn=partial(show_warning, options, screen)
    )
    from triforce_chat.lab.evaluation.exactness_suite import verify_stacks
    from triforce_chat.loading.stack_options import stack_for

    names = stacks_to_test(options, engine)
    stack = stack_for(settings, target)
    text = "\n\n".join(texts) or prompt("verify")
    outcomes = []
    for outcome in verify_stacks(engine, target, text, stack, names, tokens):
        outcomes.append(outcome.record())
        if options.jsonl:
            print_json(outcome_object(outcome))
        elif not options.json:
            show_outcome(outcome, screen)
    failed = [outcome["stack"] for outcome in outcomes if not outcome["passed"]]
    if options.json:
        print_record({"model": options.model, "passed": not failed, "stacks": outcomes})
    if failed:
        raise ExactnessError(f"not exact: {', '.join(failed)}")


def stacks_to_test(options: Options, engine: Answering) -> list[str]:
    if options.stack != "auto":
        return [options.stack]
    return [name for name, spec in STACKS.items() if engine.draft or not spec.needs_draft]


command(app)(bench.bench)
command(app)(plan.plan)
app.command()(config.paths)
app.command()(doctor.doctor)


@app.command("schema")
def print_schema(
    kind: Annotated[
        Literal["events", "answer", "plan", "bench"],
        typer.Argument(help="Lines of --jsonl, the object of --json, or that of plan or bench."),
    ] = "events",
) -> None:
    """Print the JSON Schema of what --jsonl or --json prints."""
    from triforce_chat.chat.schema import load_schema

    print(json.dumps(load_schema(kind), indent=2))


def answer(documents: list[str], question: str, options: Options, compare: bool) -> None:
    """Answer one question in the form that the options ask for."""
    from triforce_chat.chat.records import Origin

    screen = screen_of(options)
    session, load_s = open_session(read_all(documents, options, screen), options, screen)
    origin = Origin(options.model, session.loaded.draft, options.stack, load_s)
    show = compare_once if compare else answer_once
    reason = show(session, question, options, screen, origin)
    if reason == "interrupted":
        raise typer.Exit(Interrupted.exit_code)


def answer_once(session: Session, question: str, options: Options, screen: Screen, origin: Any) -> str:
    from triforce_chat.chat.records import answer_object, event_object
    from triforce_chat.ui.answer import fold_answer, show_answer

    told = options.json or options.jsonl
    events = session.ask(question, sources=told or screen.detail != "bare")  # where somebody sees them
    lines = print_json if options.jsonl else ignore
    if told:
        tally = fold_answer(events, lambda event: lines(event_object(event)))
        if options.json:
            print_json(answer_object(tally, origin))
    else:
        tally = show_answer(events, screen, title=options.stack, limit=session.context_limit)
    return tally.finished.reason if tally.finished else "interrupted"


def compare_once(session: Session, question: str, options: Options, screen: Screen, origin: Any) -> str:
    from triforce_chat.chat.records import comparison_object, event_object
    from triforce_chat.ui.compare import fold_comparison, show_comparison

    items, lines = session.compare(question), print_json if options.jsonl else ignore
    if options.json or options.jsonl:
        result = fold_comparison(items, lambda side, event: lines(event_object(event, side)))
        if result is not None and options.json:
            print_json(comparison_object(result, origin))
    else:
        result = show_comparison(items, screen, limit=session.context_limit)
    if result is not None and result.mismatches:
        raise ExactnessError(f"{result.mismatches} tokens differ from plain decoding beyond rounding")
    return "stop" if result else "interrupted"


def ignore(_value: dict[str, Any]) -> None:
    """Where event lines go unless they were asked for."""


def open_session(documents: list[Document], options: Options, screen: Screen) -> tuple[Session, float]:
    """Load the model and put the documents into a conversation: (session, seconds of loading)."""
    from triforce_chat.loading.spec import EngineSpec

    engine, target, seconds = open_answering(
        EngineSpec(options.settings),
        screen,
        remembering=not options.no_cache,
        cache_size=options.cache_size,
        warn=partial(show_warning, options, screen),
    )
    from triforce_chat.chat.session import Session

    session = Session(engine, target, options.settings, options.system)
    for document in documents:
        session.add(document)
    return session, seconds


def history_file() -> Path | None:
    """Where questions are remembered; None where nothing can be written."""
    from triforce_chat.settings.paths import history

    try:
        history().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return history()


def version(wanted: bool) -> None:
    if wanted:
        print(f"triforce-chat {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The program."""
    # libgomp's threads spin for milliseconds at every barrier; when anything else wants a core, that makes
    # decoding tens of times slower. This many turns bridge the gaps between two operators and no more.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    keep_private()
    app()
