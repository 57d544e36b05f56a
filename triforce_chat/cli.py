"""The commands. Only this module wires everything together; it imports torch when a command needs it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat import __version__
from triforce_chat.config import POLICIES, STACKS, Settings
from triforce_chat.errors import ExactnessError, Interrupted, OutOfMemory, TriforceError, UsageError

if TYPE_CHECKING:
    from triforce_chat.documents import Document
    from triforce_chat.engine.engine import Engine
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.session import Session
    from triforce_chat.ui.terminal import Screen

EXIT_CODES = """Exit codes: 0 success, 1 unexpected error, 2 usage, 3 unreadable document, 4 does not fit the \
context, 5 model unavailable, 6 out of memory, 7 exactness failure, 130 interrupted."""

app = typer.Typer(
    help="Chat with whole books: exact hierarchical speculative decoding on your own machine.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ANSWER, ENGINE, OUTPUT = "Answer", "Engine", "Output"


def option(help_text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Flags that every command shares."""

    model: Annotated[
        str, option("Preset name, folder (safetensors or GGUF), .gguf file, or hub id.", ENGINE)
    ] = "default"
    draft: Annotated[
        str | None, option("Draft model with the same vocabulary; without one, lookup drafts.", ENGINE)
    ] = None
    stack: Annotated[str, option(f"Who drafts for whom: {', '.join(STACKS)}.", ENGINE)] = "auto"
    budget: Annotated[int | None, option("Retrieval cache in tokens.", ENGINE)] = None
    chunk: Annotated[int, option("Tokens that are selected together.", ENGINE)] = 8
    policy: Annotated[str, option(f"How chunks are scored: {', '.join(POLICIES)}.", ENGINE)] = "mean"
    gamma: Annotated[int | None, option("Tokens drafted per verification (auto: at most).", ENGINE)] = None
    draft_gamma: Annotated[int, option("Tokens drafted per step of the middle level.", ENGINE)] = 4
    context: Annotated[int | None, option("Context to allocate, in tokens.", ENGINE)] = None
    device: Annotated[str, option("auto, cpu or cuda.", ENGINE)] = "auto"
    dtype: Annotated[str, option("auto, float32, float16 or bfloat16.", ENGINE)] = "auto"
    temperature: Annotated[float | None, option("0 is greedy.", ANSWER)] = None
    top_p: Annotated[float | None, option("Nucleus: keep this much probability.", ANSWER)] = None
    top_k: Annotated[int, option("Keep this many tokens; 0 keeps all.", ANSWER)] = 0
    min_p: Annotated[float, option("Drop tokens below this share of the best one.", ANSWER)] = 0.0
    repetition_penalty: Annotated[float | None, option("Over the answer's own tokens; 1 is off.", ANSWER)] = (
        None
    )
    seed: Annotated[
        int | None, option("Makes sampling repeatable; auto then drafts by lookup alone.", ANSWER)
    ] = None
    max_tokens: Annotated[int, option("Longest answer.", ANSWER)] = 512
    system: Annotated[str | None, option("System text.", ANSWER)] = None
    pages: Annotated[str | None, option("Only these pages, as in 1-80,90.", ANSWER)] = None
    password: Annotated[str | None, option("For encrypted documents.", ANSWER)] = None
    json: Annotated[bool, option("Print one JSON object.", OUTPUT, "--json")] = False
    jsonl: Annotated[bool, option("Print every event as a JSON line.", OUTPUT, "--jsonl")] = False
    quiet: Annotated[bool, option("Print the answer and nothing else.", OUTPUT, "--quiet", "-q")] = False
    no_live: Annotated[bool, option("No live panel.", OUTPUT, "--no-live")] = False
    debug: Annotated[bool, option("Show tracebacks.", OUTPUT, "--debug")] = False

    @property
    def settings(self) -> Settings:
        names = [field.name for field in dataclasses.fields(Settings)]
        return Settings(**{name: getattr(self, name) for name in names})


def command(run: Callable[..., None]) -> Callable[..., None]:
    """Register a command that takes ``options: Options`` last: its fields become flags."""

    @wraps(run)
    def called(**given: Any) -> None:
        shared = {field.name: given.pop(field.name) for field in dataclasses.fields(Options)}
        with failures(shared["debug"]):
            run(**given, options=Options(**shared))

    own = [p for name, p in inspect.signature(run, eval_str=True).parameters.items() if name != "options"]
    flags = inspect.signature(Options, eval_str=True).parameters.values()
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *flags)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(called).pop("__wrapped__")  # the wrapped function's signature is not the command's
    return app.command()(called)


@contextmanager
def failures(debug: bool) -> Iterator[None]:
    """Turn what can go wrong into one line and an exit code."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        raise typer.Exit(0) from None
    except (TriforceError, KeyboardInterrupt, MemoryError, RuntimeError, OSError) as error:
        known = _known(error)
        if debug or known is None:
            raise
        _complain(str(known))
        raise typer.Exit(known.exit_code) from None


def _known(error: BaseException) -> TriforceError | None:
    """The error as a user can understand it; None for a defect of the program."""
    if isinstance(error, TriforceError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, OSError):
        return TriforceError(error.strerror or str(error))
    from triforce_chat.models.failures import is_out_of_memory

    if is_out_of_memory(error):
        return OutOfMemory("out of memory; choose a smaller --context, fewer pages or a smaller model")
    return None


def _complain(line: str) -> None:
    from triforce_chat.ui.clean import clean

    print(f"error: {clean(line)}", file=sys.stderr)


Documents = Annotated[
    list[str],
    typer.Argument(metavar="DOC...", help="PDF, EPUB, HTML, Markdown or text; - is standard input."),
]
Compare = Annotated[
    bool, typer.Option("--compare-autoregressive", help="Answer again plainly, side by side.")
]


@command
def summarize(documents: Documents, options: Options, compare_autoregressive: Compare = False) -> None:
    """Summarize documents."""
    from triforce_chat.prompts import prompt

    answer(documents, prompt("summarize"), options, compare_autoregressive)


@command
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


@command
def chat(
    options: Options,
    documents: Annotated[list[str] | None, typer.Argument(metavar="[DOC...]", help="To begin with.")] = None,
) -> None:
    """Talk about documents, turn by turn; /help lists the commands."""
    from triforce_chat.ui.repl import Labels, Repl

    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl go with ask and summarize")
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if "-" in (documents or []):
        raise UsageError("chat reads your questions from standard input; give it the document as a file")
    screen = screen_of(options)
    session, _ = open_session(read_all(documents or [], options, screen), options, screen)
    repl = Repl(
        session,
        lambda path, pages: read_one(path, options, pages),
        screen,
        lambda: Labels(options.model, session.settings.stack),
        history_file(),
    )
    code = repl.run() if interactive else repl.run_lines(sys.stdin or ())
    if code:
        raise typer.Exit(code)


@command
def verify(
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Text to test on.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per stack and test.")] = 256,
) -> None:
    """Test that speculative decoding is exact here; --stack auto tests every stack."""
    from triforce_chat.prompts import prompt
    from triforce_chat.report import SCHEMA
    from triforce_chat.ui.verdicts import show_outcome

    screen = screen_of(options)
    texts = [document.text for document in read_all(documents or [], options, screen)]
    # A budget far below the text's length, or the retrieval cache would hold everything and prove nothing.
    settings = dataclasses.replace(
        options.settings,
        dtype="float32" if options.dtype == "auto" else options.dtype,
        budget=options.budget or 128,
    )
    engine, target, _ = open_engine(settings, screen)
    from triforce_chat.verification import verify_stacks
    from triforce_chat.wiring import stack_of

    names = stacks_to_test(options)
    stack = stack_of(settings, engine.context)
    text = "\n\n".join(texts) or prompt("verify")
    outcomes = []
    for outcome in verify_stacks(engine, target, text, stack, names, tokens):
        outcomes.append(outcome.record())
        if options.jsonl:
            print_json(outcome.record())
        elif not options.json:
            show_outcome(outcome, screen)
    failed = [outcome["stack"] for outcome in outcomes if not outcome["passed"]]
    if options.json:
        print_json({"schema": SCHEMA, "model": options.model, "passed": not failed, "stacks": outcomes})
    if failed:
        raise ExactnessError(f"not exact: {', '.join(failed)}")


def stacks_to_test(options: Options) -> list[str]:
    if options.stack != "auto":
        return [options.stack]
    return [name for name in STACKS if options.draft or name != "naive"]


@command
def bench(
    documents: Documents,
    options: Options,
    contexts: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "1024,4096",
    stacks: Annotated[str, typer.Option(help="Stacks to compare.")] = "autoregressive,auto,triforce,lookup",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the median counts.")] = 3,
    stock: Annotated[bool, typer.Option("--stock", help="Measure transformers' generate as well.")] = False,
) -> None:
    """Measure ms/token, prefill and memory at several context lengths."""
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    lengths, names = numbers(contexts), stacks.split(",")
    for name in names:
        dataclasses.replace(options.settings, stack=name)  # complains about an unknown one
    engine, target, _ = open_engine(options.settings, screen, room=max(lengths) + tokens)
    from triforce_chat.bench.machine import machine
    from triforce_chat.bench.measure import Bench, prompt_of
    from triforce_chat.bench.stock import Stock
    from triforce_chat.bench.table import table
    from triforce_chat.report import SCHEMA

    run = Bench(engine, target, options.settings, tokens, repeats)
    prompts = [prompt_of(target, texts, length) for length in lengths]
    rows = [row for ids in prompts for row in run.stacks(ids, names)]
    if stock:
        untouched = Stock(options.settings)
        rows += [run.stock(untouched, ids) for ids in prompts]
    if options.json:
        record = {
            "schema": SCHEMA,
            "machine": machine(),
            "command": " ".join(["triforce-chat", *sys.argv[1:]]),
        }
        print_json({**record, "rows": [dataclasses.asdict(row) for row in rows]})
    else:
        screen.out.width = max(screen.out.width, 110)
        screen.out.print(table(sorted(rows, key=lambda row: row.context)))


def numbers(text: str) -> list[int]:
    """Read "1024,8192"."""
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"'{text}' is not a list of numbers; write for example 1024,8192") from None


def answer(documents: list[str], question: str, options: Options, compare: bool) -> None:
    """Answer one question in the form that the options ask for."""
    from triforce_chat.report import Origin

    screen = screen_of(options)
    session, load_s = open_session(read_all(documents, options, screen), options, screen)
    origin = Origin(options.model, options.draft, options.stack, load_s)
    show = compare_once if compare else answer_once
    reason = show(session, question, options, screen, origin)
    if reason == "interrupted":
        raise typer.Exit(Interrupted.exit_code)


def answer_once(session: Session, question: str, options: Options, screen: Screen, origin: Any) -> str:
    from triforce_chat.report import answer_object, event_object
    from triforce_chat.ui.answer import fold_answer, show_answer

    events, lines = session.ask(question), print_json if options.jsonl else ignore
    if options.json or options.jsonl:
        tally = fold_answer(events, lambda event: lines(event_object(event)))
        if options.json:
            print_json(answer_object(tally, origin))
    else:
        tally = show_answer(events, screen, title=options.stack, limit=session.context_limit)
    return tally.finished.reason if tally.finished else "interrupted"


def compare_once(session: Session, question: str, options: Options, screen: Screen, origin: Any) -> str:
    from triforce_chat.report import comparison_object, event_object
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


def print_json(value: dict[str, Any]) -> None:
    readable = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, ensure_ascii=not readable), flush=True)


def screen_of(options: Options) -> Screen:
    from rich.console import Console

    from triforce_chat.ui.terminal import Screen

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    quiet = options.quiet or options.json or options.jsonl
    return Screen.of(Console(), Console(stderr=True), live=not options.no_live, quiet=quiet)


def read_all(paths: list[str], options: Options, screen: Screen) -> list[Document]:
    """Read documents before anything slow is loaded; say what they lack."""
    if paths.count("-") > 1:
        raise UsageError("standard input can be read only once")
    documents = [read_one(path, options, options.pages, several=len(paths) > 1) for path in paths]
    for document in documents:
        if document.warning and not options.quiet:
            from triforce_chat.ui.clean import clean

            screen.err.print(f"{clean(document.title)}: {document.warning}", markup=False, style="yellow")
    return documents


def read_one(path: str, options: Options, pages: str | None, several: bool = False) -> Document:
    """Read a document and keep the wanted pages; of several documents each gives those that it has."""
    from triforce_chat.documents import parse_pages, read

    ranges = parse_pages(pages) if pages else None
    document = read(path, password=options.password, stdin=sys.stdin.buffer if path == "-" else None)
    if ranges is None:
        return document
    return document.select([r.within(document.pages[-1].number) for r in ranges] if several else ranges)


def open_session(documents: list[Document], options: Options, screen: Screen) -> tuple[Session, float]:
    """Load the model and put the documents into a conversation: (session, seconds of loading)."""
    engine, target, seconds = open_engine(options.settings, screen)
    from triforce_chat.session import Session

    session = Session(engine, target, options.settings, options.system)
    for document in documents:
        session.add(document)
    return session, seconds


def open_engine(
    settings: Settings, screen: Screen, room: int | None = None
) -> tuple[Engine, LoadedModel, float]:
    """Load a model with progress on the screen: (engine, model, seconds)."""
    from triforce_chat.ui.loading import loading

    started = time.perf_counter()
    with loading(screen, settings.model) as report:
        from triforce_chat.wiring import load_engine  # imports torch, which takes seconds of its own

        engine, target = load_engine(settings, report, room)
    return engine, target, time.perf_counter() - started


def history_file() -> Path | None:
    """Where questions are remembered; None where nothing can be written."""
    from platformdirs import user_state_path

    folder = user_state_path("triforce-chat", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder / "history"


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
    app()
