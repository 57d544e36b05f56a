"""``triforce-chat bench``: speed and memory of the stacks, side by side, and where a round's time goes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.engines import compile_ahead, open_answering, with_shown_model
from triforce_chat.cli.options import Documents, parse_list
from triforce_chat.cli.output import TABLE_WIDTH, print_json, print_record, screen_of
from triforce_chat.cli.reading import read_all
from triforce_chat.engine.speculation.stack_specs import LARGEST_STREAMED, STACKS
from triforce_chat.errors import Interrupted, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO, STORED, TREES, Settings
from triforce_chat.settings.sizes import parsed_batch, parsed_size

if TYPE_CHECKING:
    from triforce_chat.documents import Document
    from triforce_chat.lab.bench.cases import Case
    from triforce_chat.lab.bench.measure import Bench
    from triforce_chat.lab.bench.peer import Peer
    from triforce_chat.lab.bench.profile import Profile
    from triforce_chat.lab.bench.row import Row, Run
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.models.shapes import BigShape
    from triforce_chat.ui.terminal import Screen

# The model that --inflate enlarges unless another one is named: it has a draft, and loads fast.
INFLATED = "small"
QUESTION_ROOM = 64  # tokens of a question of --shared
USUAL_TREE = 64  # tokens of a tree that any stack's memory has room for


@dataclasses.dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure, and how."""

    contexts: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "1024,4096"
    stacks: Annotated[str, typer.Option(help="Stacks to compare.")] = "autoregressive,auto,triforce,lookup"
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode.")] = 64
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the median counts.")] = 3
    warmup: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens decoded before the first run of each case, not counted; 0 measures a first answer.",
        ),
    ] = 32
    plain_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Stop plain decoding after this many tokens, where each takes long.",
            show_default=False,
        ),
    ] = None
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts, each from another place of the documents.")
    ] = 1
    skip_prompts: Annotated[
        int, typer.Option(min=0, help="Skip this many of the first prompts, to measure in several parts.")
    ] = 0
    temperatures: Annotated[str | None, typer.Option(help="Several, as in 0,0.6,1.")] = None
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Try each value, as in budget=512,1024 or tokens=256,512; may be repeated.",
        ),
    ] = None
    one_by_one: Annotated[
        bool,
        typer.Option("--one-by-one", help="Vary one setting at a time, not every combination of several."),
    ] = False
    past_end: Annotated[
        bool, typer.Option("--past-end", help="Keep decoding where the model would end its answer.")
    ] = False
    same_text: Annotated[
        bool,
        typer.Option(
            "--same-text",
            help="All stacks decode what plain decoding drew, past its end: a fair comparison with few prompts.",
        ),
    ] = False
    shared: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Measure this many questions about each text, answered at once, beside one alone.",
            show_default=False,
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="NxTOKENS,...",
            help="Measure different texts at once, as in 2x57344,6x19456, over plain decoding of the same.",
        ),
    ] = None
    stock: Annotated[bool, typer.Option("--stock", help="Measure transformers' generate as well.")] = False
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="With --offload, measure transformers' offloaded cache and attention on the host as well.",
        ),
    ] = False
    peer: Annotated[
        str | None,
        typer.Option(metavar="llama.cpp", help="Measure llama.cpp on the same GGUF file as well, greedily."),
    ] = None
    inflate: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Same model, in the dimensions of llama-2-7b and others; with --dtype stored in 4 bits, or in 8 as "
            "llama-2-7b:8bit.",
        ),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Use at most this much of each GPU, as in 24GB: simulates a smaller card."
        ),
    ] = None
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time of a round goes, instead.")
    ] = False
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timeline of --profile, for Perfetto.")
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """A bench as it was checked and parsed, before a model is loaded."""

    chosen: BenchOptions
    settings: Settings
    lengths: list[int]  # contexts, in tokens
    cases: Sequence[Case]
    shape: BigShape | None  # dimensions to inflate the model to
    device_memory: int | None  # bytes of each GPU
    peer: Peer | None = None

    @property
    def room(self) -> int:
        """Tokens that the longest prompt and the longest answer need."""
        if self.chosen.profile:
            from triforce_chat.lab.bench.profile import ROOM

            return max(self.lengths) + ROOM
        question = QUESTION_ROOM if self.chosen.shared else 0
        return max(self.lengths) + question + max(case.settings.max_tokens for case in self.cases)

    @property
    def loaded(self) -> Settings:
        """Those that the engine is loaded with before it takes the stacks of cases; not every stack drafts trees.

        Memory is planned for a level over a quantized copy of the keys and values if a case has one, and for the
        largest trees where all cases that draft have the same stack.
        """
        largest, stacks = self.largest, {case.settings.stack for case in self.cases if not case.plain}
        if largest is not None and stacks == {largest.stack} and tree_size(largest) > USUAL_TREE:
            return largest
        copies = [name for name in stacks if STACKS[name].quantized_copies]
        return dataclasses.replace(self.settings, stack=[*copies, self.settings.stack][0], tree=TREES[0])

    @property
    def largest(self) -> Settings | None:
        """Those of the case with the largest trees; None if none drafts trees."""
        return max(
            (case.settings for case in self.cases if case.settings.drafts_trees), key=tree_size, default=None
        )

    @property
    def compiled(self) -> Settings:
        """The same with trees where a case drafts some, whose kernels are compiled ahead, too."""
        found = self.largest
        tree, size = (TREES[0], None) if found is None else (found.tree, found.tree_size)
        return dataclasses.replace(self.settings, tree=tree, tree_size=size)

    @property
    def sequences(self) -> int:
        """Most answers at once."""
        groups = parsed_batch(self.chosen.batch) if self.chosen.batch else []
        return max([self.chosen.shared or 1, *(group.sequences for group in groups)])

    def record(self) -> dict[str, Any]:
        """What is needed to measure again, as plain values."""
        from triforce_chat.lab.machine import machine

        return {
            "machine": machine(),
            "command": " ".join(["triforce-chat", *sys.argv[1:]]),
            "settings": dataclasses.asdict(self.settings),
            "inflated": dataclasses.asdict(self.shape) if self.shape else None,
            "device_memory": self.device_memory,
            **({"peer": self.peer.about()} if self.peer else {}),
        }


def tree_size(settings: Settings) -> int:
    """Tokens of the largest trees that these settings may draft, where a forward takes long."""
    return settings.tree_size or (LARGEST_STREAMED if settings.tree == AUTO else 0)


def bench(documents: Documents, chosen: BenchOptions, options: Options) -> None:
    """Measure ms/token, prefill and memory at several context lengths."""
    if chosen.trace and not chosen.profile:
        raise UsageError("--trace writes what --profile measures; add --profile")
    if chosen.same_text and chosen.profile:
        raise UsageError("--profile looks at rounds of any text; leave out --same-text")
    several = "--shared" if chosen.shared else "--batch" if chosen.batch else ""
    apart = "--same-text, " if chosen.shared and chosen.same_text else ""
    if several and (apart or chosen.profile or chosen.stock or chosen.peer or chosen.baselines):
        raise UsageError(f"{several} goes without {apart}--profile, --stock, --peer and --baselines")
    if chosen.shared and chosen.batch:
        raise UsageError(
            "--shared asks about one text, --batch about several; measure them one after the other"
        )
    if chosen.peer and (chosen.inflate or chosen.profile):
        raise UsageError("--peer measures a model as it is; leave out --inflate and --profile")
    if chosen.baselines:
        from triforce_chat.lab.bench.baselines import require_baselines

        require_baselines(options.settings, chosen.stacks.split(","), chosen.profile)
    screen = screen_of(options)
    peer = peer_of(chosen, options)
    shape, cap = shape_and_cap(chosen)
    if shape:
        require_rounding(shape, options.settings)
    texts = read_all(documents, options, screen)
    if shape and options.model == AUTO:
        options = dataclasses.replace(options, model=INFLATED)
    options = with_shown_model(options, screen)
    recipe = dataclasses.replace(plan_bench(chosen, options, shape, cap), peer=peer)
    run, seconds = open_bench(recipe, options, screen)
    prompts = prompts_per_length(run.loaded, texts, recipe)
    record = conditions(recipe, run, seconds)
    if chosen.profile:
        show_profiles(run, prompts, recipe, record, options, screen)
        return
    if chosen.shared:
        show_shared(run, prompts, recipe, record, options, screen)
        return
    if chosen.batch:
        show_batches(run, prompts, recipe, record, options, screen)
        return
    show_rows(measure(run, prompts, recipe, screen.note), record, options, screen)
    if isinstance(run.ended, KeyboardInterrupt):
        raise Interrupted("interrupted: the figures cover what had been measured by then")
    if run.ended:
        raise run.ended


def conditions(recipe: Recipe, run: Bench, seconds: float) -> dict[str, Any]:
    """What the record of any measurement begins with; ``seconds``: those of loading."""
    chosen, loaded = recipe.chosen, run.loaded
    return {
        **recipe.record(),
        **({"weights": loaded.format} if loaded.stored else {}),
        **({"kv": loaded.kv_format} if loaded.kv_format else {}),
        "attention": dict(zip(("prefill", "decoding"), loaded.attention, strict=True)),
        "offloaded": loaded.offloaded,
        **({"gpu_layers": loaded.streamed.resident} if loaded.streamed else {}),
        "load_s": seconds,
        "warmup": chosen.warmup,
        "repeats": chosen.repeats,
        "plain_tokens": chosen.plain_tokens,
        "past_end": run.past_end,
        "same_text": chosen.same_text,
    }


def require_rounding(shape: BigShape, settings: Settings) -> None:
    """Raise UsageError if an inflated model cannot be rounded as is asked, or is not to be rounded."""
    from triforce_chat.loading.device import require_gpu
    from triforce_chat.models.shapes import IN_8_BITS

    if settings.dtype == STORED:
        require_gpu(settings, f"--dtype {STORED} rounds an inflated model for a GPU's kernels")
    elif shape.bits == IN_8_BITS:
        raise UsageError(f"--inflate {shape.name} rounds weights; add --dtype {STORED}")


def shape_and_cap(chosen: BenchOptions) -> tuple[BigShape | None, int | None]:
    """(dimensions to inflate the model to, bytes of each GPU to use). Raises UsageError."""
    from triforce_chat.models.shapes import find_shape

    shape = find_shape(chosen.inflate) if chosen.inflate else None
    return shape, parsed_size(chosen.device_memory) if chosen.device_memory else None


def peer_of(chosen: BenchOptions, options: Options) -> Peer | None:
    """The program to measure beside ours. Raises UsageError if it is not installed or cannot run the model."""
    if chosen.peer is None:
        return None
    from triforce_chat.lab.bench.peer import find_peer

    return find_peer(chosen.peer, options.settings)


def plan_bench(chosen: BenchOptions, options: Options, shape: BigShape | None, cap: int | None) -> Recipe:
    """The cases to measure. Raises UsageError."""
    groups = parsed_batch(chosen.batch) if chosen.batch else []
    lengths = [group.context for group in groups] or parse_list(chosen.contexts)
    from triforce_chat.lab.bench.cases import cases

    settings = dataclasses.replace(options.settings, max_tokens=chosen.tokens)
    temperatures = parse_list(chosen.temperatures, float, minimum=0) if chosen.temperatures else []
    every = cases(settings, chosen.stacks.split(","), temperatures, chosen.vary or [], chosen.one_by_one)
    if chosen.trace and len(every) * len(lengths) > 1:
        raise UsageError(
            "--trace writes one timeline; choose one context, one of --stacks and one temperature"
        )
    if cap:
        from triforce_chat.loading.device import require_gpu

        require_gpu(settings, "--device-memory caps the memory used on a GPU")
    return Recipe(chosen, settings, lengths, every, shape, cap)


def open_bench(recipe: Recipe, options: Options, screen: Screen) -> tuple[Bench, float]:
    """Load the model: (its measurements, seconds of loading)."""
    from triforce_chat.loading.spec import EngineSpec

    spec = EngineSpec(recipe.loaded, recipe.room, recipe.shape, recipe.device_memory, recipe.sequences)
    compile_ahead(dataclasses.replace(spec, settings=recipe.compiled), screen)
    from triforce_chat.lab.bench.case_calibrations import CaseCalibrations

    calibrations = CaseCalibrations()
    engine, target, seconds = open_answering(spec, screen, calibrations=lambda *_: calibrations)
    from triforce_chat.lab.bench.measure import Bench

    chosen, show = recipe.chosen, partial(show_run, options, screen, target)
    run = Bench(
        engine,
        target,
        chosen.repeats,
        chosen.warmup,
        chosen.past_end,
        show,
        chosen.plain_tokens,
        chosen.same_text,
        calibrations,
    )
    return run, seconds


def prompts_per_length(
    target: LoadedModel, texts: list[Document], recipe: Recipe
) -> list[Sequence[Sequence[int]]]:
    """Token ids of the prompts for each context length."""
    from triforce_chat.lab.bench.cases import prompts_of, texts_of

    ids, skip, batch = texts_of(target, texts), recipe.chosen.skip_prompts, recipe.chosen.batch
    counts = [group.sequences for group in parsed_batch(batch)] if batch else []
    wanted = zip(recipe.lengths, counts or [recipe.chosen.prompts] * len(recipe.lengths), strict=True)
    return [prompts_of(target, ids, length, skip + count)[skip:] for length, count in wanted]


def measure(
    run: Bench, prompts: Sequence[Sequence[Sequence[int]]], recipe: Recipe, note: Callable[[str], None]
) -> list[Row]:
    """Rows of all lengths, up to an interrupt or an error."""
    rows: list[Row] = []
    for same_length in prompts:
        found = [*run.rows(same_length, recipe.cases)]
        rows += found
        if recipe.chosen.baselines and not run.ended:
            rows += run.baselines(same_length[-1], found, note)
        if run.ended:
            return rows
    if recipe.chosen.stock:
        from triforce_chat.lab.bench.stock import Stock

        baseline = Stock(recipe.settings, recipe.shape)
        rows += [run.stock(baseline, same_length[0], recipe.chosen.tokens) for same_length in prompts]
    if recipe.peer:
        for same_length in prompts:
            rows += run.peer(recipe.peer, same_length, recipe.chosen.tokens)
            if run.ended:
                break
    return rows


def show_run(
    options: Options, screen: Screen, target: LoadedModel, context: int, n: int, case: Case, run: Run
) -> None:
    """Print one run as soon as it is measured: a long bench may be interrupted."""
    from triforce_chat.chat.records import SCHEMA
    from triforce_chat.settings.engine_options import sampling_of

    temperature = sampling_of(case.settings, target).temperature
    if options.jsonl:
        print_json(
            {
                "schema": SCHEMA,
                "event": "run",
                "context": context,
                "prompt": n,
                "contender": case.settings.stack,
                "temperature": temperature,
                "varied": dict(case.varied),
                "tokens": len(run.tally.token_ids),
                "token_ids": run.tally.token_ids,
                "ms_per_token": run.ms_per_token,
                "tokens_per_round": run.tally.tokens_per_round,
            }
        )
    else:
        place = f"{context:,} tokens, prompt {n + 1}"
        tell(screen, f"{place}: {case.name} T={temperature:g}: {run.ms_per_token:.1f} ms/token")


def show_rows(rows: Sequence[Row], record: dict[str, Any], options: Options, screen: Screen) -> None:
    """Print the rows as a table or as one JSON record."""
    from triforce_chat.lab.bench.table import table

    if options.json:
        print_record({**record, "rows": [dataclasses.asdict(row) for row in rows], "profiles": []})
    elif not options.jsonl:
        screen.out.width = max(screen.out.width, TABLE_WIDTH)
        screen.out.print(table(sorted(rows, key=lambda row: row.context)))


def show_profiles(
    run: Bench,
    prompts: Sequence[Sequence[Sequence[int]]],
    recipe: Recipe,
    record: dict[str, Any],
    options: Options,
    screen: Screen,
) -> None:
    """Profile every case on the first prompt of every length."""
    from triforce_chat.lab.bench.profile import profiles
    from triforce_chat.lab.bench.table import profile_lines

    found: list[Profile] = []
    for prompt, *_ in prompts:
        for profile in profiles(run, prompt, recipe.cases, recipe.chosen.trace):
            found.append(profile)
            if not options.json:
                screen.out.width = max(screen.out.width, TABLE_WIDTH)
                for part in profile_lines(profile):
                    screen.out.print(part, markup=False, highlight=False)
    if options.json:
        print_record({**record, "rows": [], "profiles": [dataclasses.asdict(each) for each in found]})


def show_shared(
    run: Bench,
    prompts: Sequence[Sequence[Sequence[int]]],
    recipe: Recipe,
    record: dict[str, Any],
    options: Options,
    screen: Screen,
) -> None:
    """Measure questions that are answered at once, and print a table or one JSON record."""
    from triforce_chat.lab.bench.table import together_table
    from triforce_chat.lab.bench.together import Together, measure_together

    chosen, found = recipe.chosen, list[Together]()
    assert chosen.shared
    for text in (text for same_length in prompts for text in same_length):
        every = measure_together(
            *(run.engine, run.loaded, text, recipe.cases, chosen.shared),
            *(chosen.repeats, chosen.warmup, chosen.past_end),
        )
        for each in every:
            found.append(each)
            tell(screen, f"{each.context:,} tokens, {each.contender}: {each.times_one:.2f} times one answer")
    show_found({"shared": found}, together_table(found), record, options, screen)


def show_batches(
    run: Bench,
    prompts: Sequence[Sequence[Sequence[int]]],
    recipe: Recipe,
    record: dict[str, Any],
    options: Options,
    screen: Screen,
) -> None:
    """Measure different texts at once, each group of equal length by itself, and print a table or one JSON record."""
    from triforce_chat.lab.bench.batch import Batched, measure_batch, several
    from triforce_chat.lab.bench.table import batch_table

    chosen, found, origin = recipe.chosen, list[Batched](), several(run.engine)
    for same_length in prompts:
        every = measure_batch(
            *(origin, run.loaded, same_length, recipe.cases),
            *(chosen.repeats, chosen.warmup, run.past_end, chosen.same_text),
        )
        for each in every:
            found.append(each)
            size = f"{each.sequences} x {each.context:,} tokens"
            factors = f"{each.speedup:.2f}x, {each.full_speedup:.2f}x while all were answered"
            tell(
                screen,
                f"{size}, {each.contender} T={each.temperature:g}: {each.ms_per_token:.2f} ms/token, {factors}",
            )
    show_found({"batches": found}, batch_table(found), record, options, screen)


def tell(screen: Screen, line: str) -> None:
    """Say on the terminal what was just measured."""
    if screen.detail != "bare":
        screen.err.print(line, markup=False, style="dim", highlight=False)


def show_found(
    found: dict[str, Any], table: Any, record: dict[str, Any], options: Options, screen: Screen
) -> None:
    """Print the figures of sequences that ran together, by their name in the record, as JSON or as a table."""
    if options.json:
        plain = {name: [dataclasses.asdict(each) for each in rows] for name, rows in found.items()}
        print_record({**record, "rows": [], "profiles": [], **plain})
    else:
        screen.out.width = max(screen.out.width, TABLE_WIDTH)
        screen.out.print(table)
