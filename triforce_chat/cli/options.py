"""What all commands share: their flags, their screen, reading documents, loading models, and how they fail."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from triforce_chat.cli.complete import among, drafts, models
from triforce_chat.errors import Interrupted, TriforceError, UsageError
from triforce_chat.settings.settings import DTYPES, MIDDLES, POLICIES, STACKS, Settings

if TYPE_CHECKING:
    from triforce_chat.documents import Document
    from triforce_chat.engine.engine import Engine
    from triforce_chat.engine.protocol import EngineProtocol
    from triforce_chat.loading.spec import EngineSpec, LoadHooks, Note
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.ui.terminal import Screen

Made = TypeVar("Made")
GIGABYTE = 10**9
ANSWER, ENGINE, OUTPUT = "Answer", "Engine", "Output"


def option(help_text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


Documents = Annotated[
    list[str],
    typer.Argument(metavar="DOC...", help="PDF, EPUB, HTML, Markdown or text; - is standard input."),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Flags that every command shares."""

    model: Annotated[
        str,
        option(
            "Preset name, folder (safetensors or GGUF), .gguf file, or hub id.", ENGINE, autocompletion=models
        ),
    ] = "default"
    draft: Annotated[
        str,
        option(
            "Draft model with the same vocabulary; auto takes a known one, none leaves it to lookup.",
            ENGINE,
            autocompletion=drafts,
        ),
    ] = "auto"
    stack: Annotated[
        str, option(f"Who drafts for whom: {', '.join(STACKS)}.", ENGINE, autocompletion=among(STACKS))
    ] = "auto"
    budget: Annotated[int | None, option("Retrieval cache in tokens.", ENGINE)] = None
    chunk: Annotated[int, option("Tokens that are selected together.", ENGINE)] = 8
    policy: Annotated[
        str, option(f"How chunks are scored: {', '.join(POLICIES)}.", ENGINE, autocompletion=among(POLICIES))
    ] = "mean"
    middle: Annotated[
        str,
        option(
            f"Weights of the middle level on a GPU: {', '.join(MIDDLES)}.",
            ENGINE,
            autocompletion=among(MIDDLES),
        ),
    ] = "auto"
    gamma: Annotated[
        int | None, option("Tokens drafted per verification (auto: at most); planned if not given.", ENGINE)
    ] = None
    draft_gamma: Annotated[
        int | None, option("Tokens drafted per step of the middle level; planned if not given.", ENGINE)
    ] = None
    context: Annotated[int | None, option("Context to allocate, in tokens.", ENGINE)] = None
    offload: Annotated[
        bool,
        option(
            "Keep all keys and values in host memory (by itself: those of the layers a GPU has no room for).",
            ENGINE,
            "--offload",
        ),
    ] = False
    device: Annotated[
        str, option("auto, cpu or cuda.", ENGINE, autocompletion=among(("auto", "cpu", "cuda")))
    ] = "auto"
    tp: Annotated[
        int, option("Processes that share the model (tensor parallelism), a GPU each.", ENGINE, min=1)
    ] = 1
    dtype: Annotated[
        str, option("auto, float32, float16 or bfloat16.", ENGINE, autocompletion=among(DTYPES))
    ] = "auto"
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
    no_cache: Annotated[
        bool, option("Neither use nor keep what was read of documents on the disk.", ENGINE, "--no-cache")
    ] = False
    cache_size: Annotated[
        float | None,
        option("Keep at most so many GB of it (default: a quarter of the free disk).", ENGINE, min=0),
    ] = None
    pages: Annotated[str | None, option("Only these pages, as in 1-80,90.", ANSWER)] = None
    password: Annotated[str | None, option("For encrypted documents.", ANSWER)] = None
    ocr: Annotated[
        bool, option("Read the images on PDF pages without text with tesseract.", ANSWER, "--ocr")
    ] = False
    json: Annotated[bool, option("Print one JSON object.", OUTPUT, "--json")] = False
    jsonl: Annotated[bool, option("Print every event as a JSON line.", OUTPUT, "--jsonl")] = False
    quiet: Annotated[bool, option("Print the answer and nothing else.", OUTPUT, "--quiet", "-q")] = False
    plain: Annotated[
        bool,
        option("Whole lines only, for screen readers: no panel, colour or redrawing.", OUTPUT, "--plain"),
    ] = False
    debug: Annotated[bool, option("Show tracebacks.", OUTPUT, "--debug")] = False

    @property
    def settings(self) -> Settings:
        names = [field.name for field in dataclasses.fields(Settings)]
        return Settings(**{name: getattr(self, name) for name in names})


def command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that takes ``options: Options`` last: its fields become flags."""
    return partial(_register, app)


def _register(app: typer.Typer, run: Callable[..., None]) -> Callable[..., None]:
    own = [p for name, p in inspect.signature(run, eval_str=True).parameters.items() if name != "options"]
    contexts = [p.name for p in own if p.annotation is typer.Context]  # a command gets one at most
    own = [p for p in own if p.name not in contexts]

    @wraps(run)
    def called(invocation: typer.Context, **values: Any) -> None:
        shared = {field.name: values.pop(field.name) for field in dataclasses.fields(Options)}
        values |= dict.fromkeys(contexts, invocation)
        with failures(shared["debug"]):
            options = Options(**{**shared, **_kept(invocation)})
            if not follows(options):
                run(**values, options=options)

    flags = inspect.signature(Options, eval_str=True).parameters.values()
    context = inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *flags))]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(called).pop("__wrapped__")  # the wrapped function's signature is not the command's
    return app.command()(called)


def _kept(invocation: typer.Context) -> dict[str, Any]:
    """What the user keeps in a file or in the environment and did not say otherwise by a flag."""
    from triforce_chat.settings.layers import kept

    flags = given(invocation)
    return {name: value for name, value in kept().items() if name not in flags}


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
    from triforce_chat.models.failures import is_out_of_memory, ran_out

    return ran_out() if is_out_of_memory(error) else None


def _complain(line: str) -> None:
    from triforce_chat.ui.clean import one_line

    print(f"error: {one_line(line)}", file=sys.stderr)


def print_json(value: dict[str, Any]) -> None:
    from triforce_chat.ui.clean import escaped

    readable = (sys.stdout.encoding or "").lower().startswith("utf")
    print(escaped(json.dumps(value, ensure_ascii=not readable)), flush=True)


def print_record(record: dict[str, Any]) -> None:
    """One JSON object, with the version of what this program prints in front."""
    from triforce_chat.chat.records import SCHEMA

    print_json({"schema": SCHEMA, **record})


def screen_of(options: Options) -> Screen:
    from rich.console import Console

    from triforce_chat.ui.terminal import Screen
    from triforce_chat.ui.theme import THEME

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    quiet = options.quiet or options.json or options.jsonl
    colours: Any = {"color_system": None} if options.plain else {"theme": THEME}
    out, err = (Console(stderr=stderr, **colours) for stderr in (False, True))
    return Screen.of(out, err, plain=options.plain, quiet=quiet)


def read_all(paths: list[str], options: Options, screen: Screen) -> list[Document]:
    """Read documents before anything slow is loaded; say what they lack."""
    if paths.count("-") > 1:
        raise UsageError("standard input can be read only once")
    busy = screen.err.status("reading images") if options.ocr and screen.detail == "live" else nullcontext()
    with busy:
        documents = [read_one(path, options, options.pages, several=len(paths) > 1) for path in paths]
    for document in documents:
        if document.warning:
            show_warning(options, screen, f"{document.title}: {document.warning}")
    return documents


def read_one(path: str, options: Options, pages: str | None, several: bool = False) -> Document:
    """Read a document and keep the wanted pages; of several documents each gives those that it has."""
    from triforce_chat.documents import parse_pages, read

    ranges = parse_pages(pages) if pages else None
    stdin = sys.stdin.buffer if path == "-" else None
    document = read(path, password=options.password, stdin=stdin, ocr=options.ocr)
    if ranges is None:
        return document
    return document.select([r.within(document.pages[-1].number) for r in ranges] if several else ranges)


def open_engine(
    spec: EngineSpec,
    screen: Screen,
    remembering: bool = False,
    cache_size: float | None = None,
    warn: Note | None = None,
) -> tuple[Engine, LoadedModel, float]:
    """Load a model with progress on the screen: (engine, model, seconds).

    ``remembering`` gives the engine the user's KV cache on the disk, of at most ``cache_size`` GB. Each choice made
    for the user is printed in one line, unless the screen is bare; ``warn`` receives reasons to doubt the answers.
    """
    in_one_process(spec.settings)

    def load(hooks: LoadHooks) -> tuple[Engine, LoadedModel]:
        from triforce_chat.loading.load_engine import load_engine  # imports torch, which takes seconds

        if remembering:
            from triforce_chat.storage.kv.memory import Library

            limit = None if cache_size is None else cache_size * GIGABYTE
            kept = partial(Library.of, limit=limit, tell=hooks.note)
            hooks = dataclasses.replace(hooks, prefix_store=kept)
        return load_engine(spec, hooks)

    return _opened(load, spec, screen, warn)


def open_answering(
    spec: EngineSpec,
    screen: Screen,
    remembering: bool = False,
    cache_size: float | None = None,
    warn: Note | None = None,
) -> tuple[EngineProtocol, LoadedModel, float]:
    """As ``open_engine``, on as many ranks as the settings say; several of them keep nothing on the disk."""
    if spec.settings.tp == 1:
        return open_engine(spec, screen, remembering, cache_size, warn)

    def load(hooks: LoadHooks) -> tuple[EngineProtocol, LoadedModel]:
        from triforce_chat.parallel.place import place_of
        from triforce_chat.parallel.start import gathered

        place = place_of(spec.settings.tp, os.environ)
        team, store = gathered(place)
        from triforce_chat.parallel.lead import Lead

        if remembering:
            hooks.note("with --tp nothing that is read is kept on the disk")
        return Lead(place, team, store).load(spec, hooks)

    return _opened(load, spec, screen, warn)


def _opened(
    load: Callable[[LoadHooks], tuple[Made, LoadedModel]],
    spec: EngineSpec,
    screen: Screen,
    warn: Note | None,
) -> tuple[Made, LoadedModel, float]:
    from triforce_chat.loading.spec import LoadHooks
    from triforce_chat.ui.loading import loading

    def note(line: str) -> None:
        show_notes([line], screen)

    started = time.perf_counter()
    with loading(screen, spec.settings.model) as report:
        made, target = load(LoadHooks(report, note, warn or note))
    return made, target, time.perf_counter() - started


def in_one_process(settings: Settings) -> None:
    """Raise UsageError where ranks are wanted that this command has no use for."""
    if settings.tp > 1:
        raise UsageError(f"this command runs in one process; choose --tp 1 in place of {settings.tp}")


def follows(options: Options) -> bool:
    """Where torchrun started this process as another rank than 0, follow rank 0 to the end; True for that."""
    if options.tp == 1:
        return False
    from triforce_chat.parallel.place import place_of

    place = place_of(options.tp, os.environ)
    if place.rank == 0:
        return False
    from triforce_chat.parallel.worker import launched

    launched(place)
    return True


def show_notes(notes: list[str], screen: Screen) -> None:
    from triforce_chat.ui.clean import clean

    for line in notes if screen.detail != "bare" else ():
        screen.err.print(clean(line), markup=False, style="dim")


def show_warning(options: Options, screen: Screen, line: str) -> None:
    if not options.quiet:
        from triforce_chat.ui.clean import one_line

        screen.err.print(one_line(line), markup=False, style="bold", soft_wrap=True)


def given(context: typer.Context) -> set[str]:
    """The options that stand on the command line, as ``Options`` names them."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def listed(text: str, kind: Callable[[str], Any] = int, least: float = 1, again: bool = False) -> list[Any]:
    """Read "1024,8192": numbers from ``least`` on, sorted, each once or, with ``again``, as often as it stands there.

    Raises UsageError for anything else.
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
        found = sorted(numbers if again else set(numbers))
    except ValueError:
        found = []
    if not found or not found[0] >= least:
        raise UsageError(f"'{text}' is not a list of numbers from {least:g} on; write for example 1024,8192")
    return found
