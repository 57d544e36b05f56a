"""``triforce-chat bench``: speed and memory of the stacks, side by side, and where a round's time goes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.options import (
    Documents,
    Options,
    listed,
    open_answering,
    print_json,
    print_record,
    read_all,
    screen_of,
)
from triforce_chat.errors import Interrupted, UsageError
from triforce_chat.settings.sizes import parsed_size

if TYPE_CHECKING:
    from triforce_chat.lab.bench.cases import Case
    from triforce_chat.lab.bench.measure import Bench
    from triforce_chat.lab.bench.profile import Profile
    from triforce_chat.lab.bench.row import Row, Run
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.ui.terminal import Screen

WIDE = 170  # characters that the tables need


def bench(
    documents: Documents,
    options: Options,
    contexts: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "1024,4096",
    stacks: Annotated[str, typer.Option(help="Stacks to compare.")] = "autoregressive,auto,triforce,lookup",
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the median counts.")] = 3,
    warmup: Annotated[
        int, typer.Option(min=0, help="Tokens decoded before the first run of each, not counted.")
    ] = 32,
    plain_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens of plain decoding at most, where each takes long.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts, each from another place of the documents.")
    ] = 1,
    skip_prompts: Annotated[
        int, typer.Option(min=0, help="Leave out so many of the first: a bench in several parts.")
    ] = 0,
    temperatures: Annotated[str | None, typer.Option(help="Several, as in 0,0.6,1.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Every value in turn, as in budget=512,1024 or tokens=256,512; may be given again.",
        ),
    ] = None,
    one_by_one: Annotated[
        bool,
        typer.Option("--one-by-one", help="Vary one setting at a time, not every combination of several."),
    ] = False,
    past_end: Annotated[
        bool, typer.Option("--past-end", help="Decode on where the model would end its answer.")
    ] = False,
    stock: Annotated[bool, typer.Option("--stock", help="Measure transformers' generate as well.")] = False,
    inflate: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="Same model, in the dimensions of llama-2-7b and others."),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Use so much of each GPU at most, as in 24GB: a smaller card."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time of a round goes, instead.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the timeline of --profile, for Perfetto.")
    ] = None,
) -> None:
    """Measure ms/token, prefill and memory at several context lengths."""
    if trace and not profile:
        raise UsageError("--trace keeps what --profile sees; add --profile")
    from triforce_chat.models.shapes import find_shape

    shape = find_shape(inflate) if inflate else None
    cap = parsed_size(device_memory) if device_memory else None
    screen = screen_of(options)
    texts = read_all(documents, options, screen)
    lengths = listed(contexts)
    from triforce_chat.lab.bench.cases import cases, prompts_of, texts_of

    settings = dataclasses.replace(options.settings, max_tokens=tokens)
    heats = listed(temperatures, float, least=0) if temperatures else []
    every = cases(settings, stacks.split(","), heats, vary or [], one_by_one)
    if trace and len(every) * len(lengths) > 1:
        raise UsageError(
            "--trace keeps one timeline; choose one context, one of --stacks and one temperature"
        )
    if cap:
        from triforce_chat.loading.load_engine import require_gpu

        require_gpu(settings)
    room = max(lengths) + longest(every, profile)
    engine, target, seconds = open_answering(settings, screen, room=room, shape=shape, device_memory=cap)
    from triforce_chat.lab.bench.measure import Bench
    from triforce_chat.lab.bench.stock import Stock
    from triforce_chat.lab.machine import machine

    heard = partial(told, options, screen, target)
    run = Bench(engine, target, repeats, warmup, past_end, heard, plain_tokens)
    ids = texts_of(target, texts)
    asked = [prompts_of(target, ids, length, skip_prompts + prompts)[skip_prompts:] for length in lengths]
    record: dict[str, Any] = {
        "machine": machine(),
        "command": " ".join(["triforce-chat", *sys.argv[1:]]),
        "settings": dataclasses.asdict(settings),
        "inflated": dataclasses.asdict(shape) if shape else None,
        "device_memory": cap,
        "offloaded": target.offloaded,
        "load_s": seconds,
        "warmup": warmup,
        "repeats": repeats,
        "plain_tokens": plain_tokens,
        "past_end": past_end,
    }
    if profile:
        profiled(run, asked, every, trace, record, options, screen)
        return
    rows = list(measured(run, asked, every))
    if stock and not run.interrupted:
        untouched = Stock(settings, shape)
        rows += [run.stock(untouched, same_length[0], tokens) for same_length in asked]
    show(rows, record, options, screen)
    if run.interrupted:
        raise Interrupted("interrupted: the figures are of what had been measured by then")


def longest(every: Sequence[Case], profile: bool) -> int:
    """Tokens of the longest answer."""
    if profile:
        from triforce_chat.lab.bench.profile import ROOM

        return ROOM
    return max(case.settings.max_tokens for case in every)


def measured(run: Bench, asked: Sequence[Sequence[Sequence[int]]], every: Sequence[Case]) -> list[Row]:
    """Rows of all lengths, up to an interrupt."""
    rows: list[Row] = []
    for same_length in asked:
        rows += run.rows(same_length, every)
        if run.interrupted:
            break
    return rows


def told(
    options: Options, screen: Screen, target: LoadedModel, context: int, n: int, case: Case, run: Run
) -> None:
    """One run as soon as it is measured: a long bench may be cut off."""
    from triforce_chat.chat.records import SCHEMA
    from triforce_chat.loading.load_engine import sampling_of

    heat = sampling_of(case.settings, target).temperature
    if options.jsonl:
        print_json(
            {
                "schema": SCHEMA,
                "event": "run",
                "context": context,
                "prompt": n,
                "contender": case.settings.stack,
                "temperature": heat,
                "varied": dict(case.varied),
                "tokens": len(run.tally.token_ids),
                "token_ids": run.tally.token_ids,
                "ms_per_token": run.ms_per_token,
                "tokens_per_round": run.tally.tokens_per_round,
            }
        )
    elif screen.detail != "bare":
        line = f"{context:,} tokens, prompt {n + 1}: {case.name} T={heat:g}: {run.ms_per_token:.1f} ms/token"
        screen.err.print(line, markup=False, style="dim", highlight=False)


def show(rows: Sequence[Row], record: dict[str, Any], options: Options, screen: Screen) -> None:
    from triforce_chat.lab.bench.table import table

    if options.json:
        print_record({**record, "rows": [dataclasses.asdict(row) for row in rows], "profiles": []})
    elif not options.jsonl:
        screen.out.width = max(screen.out.width, WIDE)
        screen.out.print(table(sorted(rows, key=lambda row: row.context)))


def profiled(
    run: Bench,
    asked: Sequence[Sequence[Sequence[int]]],
    every: Sequence[Case],
    trace: Path | None,
    record: dict[str, Any],
    options: Options,
    screen: Screen,
) -> None:
    """A profile of every case on the first prompt of every length."""
    from triforce_chat.lab.bench.profile import profiles
    from triforce_chat.lab.bench.table import profile_lines

    found: list[Profile] = []
    for prompt, *_ in asked:
        for one in profiles(run, prompt, every, trace):
            found.append(one)
            if not options.json:
                screen.out.width = max(screen.out.width, WIDE)
                for part in profile_lines(one):
                    screen.out.print(part, markup=False, highlight=False)
    if options.json:
        record["profiles"] = [dataclasses.asdict(one) for one in found]
        print_record({**record, "rows": [], "profiles": record["profiles"]})
