"""``triforce-chat evaluate``: a model's quality by context length, and how often its drafts are accepted."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.engines import (
    compile_ahead,
    open_engine,
    require_one_process,
    stored_calibrations,
    with_shown_model,
)
from triforce_chat.cli.options import App, Documents, command, parse_list
from triforce_chat.cli.output import TABLE_WIDTH, print_record, screen_of, show_notes
from triforce_chat.cli.reading import read_all
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.engine.engine import Engine
    from triforce_chat.lab.evaluation.runs import Findings
    from triforce_chat.loading.spec import Calibrations
    from triforce_chat.models.adapter import Adapter
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.settings.settings import Settings
    from triforce_chat.ui.terminal import Screen

app = App(
    help="Measure a model's quality by context length, and how often its drafts are accepted.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LENGTHS = "8192,32768,124928"
WINDOW = 8192  # tokens of the sliding window that perplexity compares with
QUESTION_ROOM = 256  # tokens after a document, for a question and its answer
PASSAGE_ROOM = 512  # tokens for each passage quoted before a question
PAGED_ROOM = 2048  # likewise, where the document's last page may be longer than requested
SHORT_CONTEXT = 1024  # tokens for a question without a document, and its answer
Contexts = Annotated[str, typer.Option(help="Context lengths in tokens.")]
Reference = Annotated[
    str | None,
    typer.Option(help="Model to compare with, or none; by default an adapter's base.", show_default=False),
]


@command(app)
def perplexity(
    documents: Documents,
    options: Options,
    contexts: Annotated[
        str, typer.Option(help="Tokens to read; the largest counts if there are several.")
    ] = "124928",
    reference: Reference = None,
    strides: Annotated[
        str, typer.Option(help="Steps of 8,192-token windows over the farthest positions.")
    ] = "1024,4096",
) -> None:
    """Perplexity by position in one long text: the documents in sequence."""
    most, steps = max(parse_list(contexts)), parse_list(strides)
    if most < 2 or not all(0 < step < WINDOW for step in steps):
        raise UsageError(f"--contexts must be 2 or more, --strides from 1 to {WINDOW - 1}")
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    loaded = open_model(options, options.model, screen)
    from triforce_chat.lab.evaluation import runs

    base = reference_model(reference, loaded.source.adapter)
    other = open_model(options, base, screen) if base else None
    show(options, screen, runs.perplexity(loaded, texts, most, steps, other))


@command(app)
def eviction(
    documents: Documents,
    options: Options,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the stream.")] = 65_536,
    rules: Annotated[
        str, typer.Option(help="Eviction rules to compare.")
    ] = "window,streaming,h2o,streaming-h2o,recomputation",
    sample: Annotated[
        int, typer.Option(min=1, help="For the rule recomputation, read only one window in this many.")
    ] = 8,
    example: Annotated[
        int,
        typer.Option(
            min=0,
            help="Length of the continuations that each rule generates with a fifth of the cache kept; 0 for none.",
        ),
    ] = 2048,
) -> None:
    """Perplexity of a stream while the model's own cache evicts all but --keep tokens."""
    names = rules.split(",")
    screen = screen_of(options)
    from triforce_chat.lab.evaluation import runs
    from triforce_chat.lab.evaluation.eviction import RECOMPUTED, RULES, SHARE, Plan, rule_of

    for name in names:
        if name not in RULES:
            raise UsageError(f"no rule '{name}'; choose from {', '.join(RULES)}")
        for keep in () if name == RECOMPUTED else (options.keep, *([example // SHARE] if example else [])):
            rule_of(name, keep)  # raises UsageError for a cache that is too small
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    loaded = open_model(options, options.model, screen)
    plan = Plan(options.keep, tokens, names, sample, example)
    show(options, screen, runs.eviction(loaded, texts, plan, progress(screen)))


@command(app)
def logits(
    documents: Documents,
    options: Options,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to read.")] = 2000,
    rows: Annotated[int, typer.Option(min=1, help="Tokens per forward, as in a verification.")] = 8,
) -> None:
    """Logits of quantized weights as they are, and of 16-bit keys and values, beside those of expanded fp32 ones."""
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    loaded = open_model(options, options.model, screen)
    exact = open_model(dataclasses.replace(options, dtype="float32", kv="float32"), options.model, screen)
    from triforce_chat.lab.evaluation import runs

    show(options, screen, runs.logits(loaded, exact, texts, tokens, rows))


@command(app)
def facts(
    documents: Documents,
    options: Options,
    contexts: Contexts = LENGTHS,
    count: Annotated[int, typer.Option("--documents", min=1, help="Documents per length.")] = 10,
    page_tokens: Annotated[
        int | None, typer.Option(help="Mark pages of this many tokens in the documents.")
    ] = None,
) -> None:
    """Recall of facts planted into the documents: asked for one by one, answered greedily."""
    lengths, options = parse_list(contexts), greedy(options)
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    engine, loaded = opened(options.settings, max(lengths) + QUESTION_ROOM, screen)
    from triforce_chat.lab.evaluation import runs

    watch = progress(screen)
    found = runs.planted(engine, loaded, options.settings, texts, lengths, count, page_tokens, watch)
    show(options, screen, found)


@command(app)
def comprehension(
    documents: Documents,
    options: Options,
    contexts: Annotated[
        str, typer.Option(help="Context lengths in tokens; 0 asks without the book.")
    ] = LENGTHS,
    questions: Annotated[
        Path | None, typer.Option(help="Folder of TOML files with other questions than the program's own.")
    ] = None,
) -> None:
    """Questions about novels that this program has a list for, answered greedily and judged by accepted strings."""
    lengths, options = parse_list(contexts, minimum=0), greedy(options)
    from triforce_chat.lab.tasks.book_questions import question_sets, sets_in

    sets = list(question_sets()) if questions is None else sets_in(questions)
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    capacity = max(*lengths, SHORT_CONTEXT) + QUESTION_ROOM + PASSAGE_ROOM * options.settings.passages
    engine, loaded = opened(options.settings, capacity, screen)
    from triforce_chat.lab.evaluation import runs

    found = runs.comprehension(engine, loaded, options.settings, texts, sets, lengths, progress(screen))
    show(options, screen, found)


@command(app)
def sources(
    documents: Documents,
    options: Options,
    contexts: Contexts = "4096",
    count: Annotated[int, typer.Option("--documents", min=1, help="Excerpts per length.")] = 10,
    facts: Annotated[int, typer.Option(min=1, help="Facts planted into each.")] = 10,
    page_tokens: Annotated[int, typer.Option(min=64, help="Tokens of a page.")] = 400,
) -> None:
    """How often an answer's source pages include the right one: facts planted on random pages."""
    lengths, options = parse_list(contexts), greedy(options)
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    engine, loaded = opened(options.settings, max(lengths) + PAGED_ROOM, screen)
    from triforce_chat.lab.evaluation import sources

    plan = sources.Plan(lengths, count, facts, page_tokens, options.seed or 0)
    show(options, screen, sources.findings(engine, loaded, options.settings, texts, plan, progress(screen)))


@command(app)
def questions(options: Options, reference: Reference = None) -> None:
    """Short everyday questions, put to the model and to the one it was trained from."""
    options = greedy(options)
    screen = screen_of(options)
    options = with_shown_model(options, screen)
    from triforce_chat.models.registry import resolve

    base = reference_model(reference, resolve(options.model).adapter)
    names = dict.fromkeys([options.model, *([base] if base else [])])
    each = (dataclasses.replace(options, model=name).settings for name in names)
    engines = (opened(settings, SHORT_CONTEXT, screen) for settings in each)
    from triforce_chat.lab.evaluation import runs

    show(options, screen, runs.short_questions(engines, options.settings, progress(screen)))


@command(app)
def acceptance(
    documents: Documents,
    options: Options,
    contexts: Contexts = LENGTHS,
    temperatures: Annotated[str, typer.Option(help="Temperatures of the target's texts.")] = "0,0.6,1",
    policies: Annotated[
        str, typer.Option(help="Policies of the retrieval cache; streaming: none, the latest tokens.")
    ] = "mean,minmax",
    tokens: Annotated[int, typer.Option(min=1, help="Longest text, in tokens.")] = 128,
    samples: Annotated[int, typer.Option(min=1, help="Texts per prompt and temperature.")] = 4,
    places: Annotated[int, typer.Option(min=1, help="Places in the documents.")] = 2,
    verify: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=128,
            help="Tokens between two verifications, as when decoding; by default there is none within a text.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        bool,
        typer.Option(
            "--ranks",
            help="Also report how often a tree's first, second, ... child passes, and keep that for --tree.",
        ),
    ] = False,
) -> None:
    """Expected acceptance of every level on text that the target writes."""
    lengths, degrees, names = parse_list(contexts), parse_list(temperatures, float, 0), policies.split(",")
    from triforce_chat.lab.evaluation.acceptance import WINDOW, Plan

    for name in names:
        if name != WINDOW:
            dataclasses.replace(options.settings, policy=name)  # raises UsageError for an unknown one
    for degree in degrees:
        dataclasses.replace(options.settings, temperature=degree)
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    capacity, kept = max(lengths) + tokens, stored_calibrations if ranks else None
    engine, loaded = opened(options.settings, capacity, screen, kept)
    from triforce_chat.engine.cache.layout import Budget
    from triforce_chat.lab.evaluation import runs
    from triforce_chat.settings.engine_options import LARGEST_BUDGET

    budget = Budget(tokens=options.budget or LARGEST_BUDGET, chunk=options.chunk)
    plan = Plan(degrees, names, budget, tokens, samples, options.seed or 0, verify, ranks)
    watch = progress(screen)
    found = runs.acceptance(engine, loaded, options.settings, texts, lengths, places, plan, watch)
    show(options, screen, found)


@command(app)
def sparsity(
    documents: Documents,
    options: Options,
    contexts: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "124928",
    budgets: Annotated[
        str, typer.Option(help="Sizes of the retrieval cache, in tokens.")
    ] = "512,1024,2048,4096,8192,16384",
    policies: Annotated[str, typer.Option(help="Policies of the retrieval cache.")] = "mean,minmax",
    places: Annotated[int, typer.Option(min=1, help="Places in the documents.")] = 2,
) -> None:
    """Share of the target's attention that a retrieval cache holds: by layer, and up to 256 tokens later."""
    lengths, sizes, names = parse_list(contexts, minimum=64), parse_list(budgets), policies.split(",")
    for name in names:
        dataclasses.replace(options.settings, policy=name)  # raises UsageError for an unknown one
    screen = screen_of(options)
    from triforce_chat.engine.cache.layout import Budget
    from triforce_chat.engine.speculation.stacks import HEAVY
    from triforce_chat.lab.evaluation import runs
    from triforce_chat.lab.evaluation.sparsity import Plan

    for name in names:
        if name in HEAVY:
            raise UsageError(f"the policy '{name}' scores no chunks, which this compares; leave it out")
    plan = Plan(sizes, names, Budget(chunk=options.chunk))
    texts = read_all(documents, options, screen)
    options = with_shown_model(options, screen)
    loaded = open_model(options, options.model, screen)
    show(options, screen, runs.sparsity(loaded, texts, lengths, places, plan, progress(screen)))


def opened(
    settings: Settings, capacity: int, screen: Screen, calibrations: Calibrations | None = None
) -> tuple[Engine, LoadedModel]:
    """An engine for so many tokens, and its model; ``calibrations``: see ``open_engine``."""
    from triforce_chat.loading.spec import EngineSpec

    spec = EngineSpec(settings, capacity)
    compile_ahead(spec, screen)
    return open_engine(spec, screen, calibrations=calibrations)[:2]


def reference_model(reference: str | None, adapter: Adapter | None) -> str | None:
    """The model to compare with: the one named, or else the base of an adapter, if there is one."""
    if reference is None:
        return adapter.base if adapter else None
    return None if reference == "none" else reference


def greedy(options: Options) -> Options:
    """Options for greedy answers only: all stacks give the same ones, and lookup needs no draft model."""
    return dataclasses.replace(options, stack="lookup", draft="none", temperature=0.0)


def open_model(options: Options, name: str, screen: Screen) -> LoadedModel:
    """Load a model without an engine."""
    from triforce_chat.ui.loading import loading

    with loading(screen, name) as report:
        from triforce_chat.engine.forward import attention
        from triforce_chat.loading.device import device_and_dtype, keeps_format, kv_dtype, require_kv
        from triforce_chat.models.load import load_model

        require_one_process(options.settings)
        device, dtype = device_and_dtype(options.settings)
        loaded = load_model(
            name,
            device=device,
            dtype=dtype,
            attention=attention.NAME,
            report=report,
            note=lambda line: show_notes([line], screen),
            keep_format=keeps_format(options.settings, device),
        )
        kv = kv_dtype(
            options.settings, loaded.model.device.type, loaded.model.dtype, loaded.stored is not None
        )
        require_kv(options.settings, kv)
        return dataclasses.replace(loaded, kv=kv)


def progress(screen: Screen) -> Callable[[Iterable[Any], str], Iterator[Any]]:
    """A function that passes items through and counts them on the screen, unless that is bare."""

    def watch(items: Iterable[Any], what: str) -> Iterator[Any]:
        if screen.detail == "bare":
            yield from items
            return
        with screen.err.status(what) as status:
            for count, item in enumerate(items, 1):
                status.update(f"{what}: {count:,}")
                yield item

    return watch


def show(options: Options, screen: Screen, found: Findings) -> None:
    """Print tables, or one JSON object with everything needed to measure again."""
    if not options.json:
        screen.out.width = max(screen.out.width, TABLE_WIDTH)
        for each in found.shown:
            screen.out.print(each, markup=False, highlight=False)
            screen.out.print()
        return
    from triforce_chat.lab.machine import machine

    origin = {
        "machine": machine(),
        "command": " ".join(["triforce-chat", *sys.argv[1:]]),
        "settings": dataclasses.asdict(options.settings),
    }
    print_record({**origin, **found.record})
