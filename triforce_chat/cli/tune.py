"""``triforce-chat tune``: measures ahead what planners need to know about this machine."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.engines import compile_ahead, open_answering, stored_calibrations, with_shown_model
from triforce_chat.cli.options import parse_list
from triforce_chat.cli.output import print_record, screen_of, show_warning
from triforce_chat.cli.reading import read_all
from triforce_chat.errors import DoesNotFit
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.engine.protocol import EngineProtocol
    from triforce_chat.engine.speculation.stacks import StackOptions
    from triforce_chat.models.load import LoadedModel
    from triforce_chat.ui.terminal import Screen

CONTEXT = 4096  # tokens, if neither a document nor --contexts says how many

Contexts = Annotated[
    str | None,
    typer.Option(help="Context lengths in tokens, such as 4096,32768.", show_default="the document's"),
]


def tune(
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Text to measure with.")
    ] = None,
    contexts: Contexts = None,
) -> None:
    """Measure in advance what drafting costs on this machine; otherwise the first answers do that."""
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.prompts import prompt

    screen, lengths = screen_of(options), parse_list(contexts) if contexts else []
    compile_ahead(EngineSpec(options.settings), screen)
    text = "\n\n".join(document.text for document in read_all(documents or [], options, screen))
    options = with_shown_model(options, screen)
    warn = partial(show_warning, options, screen)
    engine, loaded, _ = open_answering(
        EngineSpec(options.settings), screen, warn=warn, calibrations=stored_calibrations
    )
    given = loaded.tokenizer.encode(text or prompt("verify"), add_special_tokens=False)
    lengths = lengths or [min(len(given) if text else CONTEXT, room(engine))]
    if max(lengths) > room(engine):
        raise DoesNotFit(f"the context has room for {room(engine):,} tokens; choose a longer --context")
    busy = screen.err.status("measuring this machine") if screen.detail == "live" else nullcontext()
    with busy:
        for stack in stacks(options, loaded):
            if stack != engine.options:
                engine.restack(stack)
            for length in lengths:
                measure(engine, list(islice(cycle(given), length)))
    show(engine, options, screen)


def room(engine: EngineProtocol) -> int:
    """Tokens of a history after which a calibration still fits."""
    from triforce_chat.engine.speculation.calibrator import TOKENS

    return engine.context - TOKENS


def stacks(options: Options, loaded: LoadedModel) -> list[StackOptions]:
    """The stack as it answers without a seed, and last as it answers with one."""
    from triforce_chat.settings.engine_options import stack_for

    settings = options.settings
    return [
        stack_for(dataclasses.replace(settings, seed=seed), loaded) for seed in (None, settings.seed or 0)
    ]


def measure(engine: EngineProtocol, prompt: list[int]) -> None:
    """Measure the present stack after a prompt, unless that was done."""
    from triforce_chat.engine.engine import Request
    from triforce_chat.engine.sampling.options import Sampling

    for _ in engine.calibrate(Request(prompt, 1, Sampling(temperature=1.0, seed=0))):
        pass


def show(engine: EngineProtocol, options: Options, screen: Screen) -> None:
    """Print what is now known about each bucket of contexts."""
    from triforce_chat.engine.speculation.calibrator import outlooks

    found = outlooks(engine.calibration)
    if options.json:
        rows: list[dict[str, Any]] = [dataclasses.asdict(each) for each in found]
        print_record({"model": options.model, "calibration": engine.calibration_key, "contexts": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("context of at least", "plain ms/token", "expected ms/token", "usable with --seed"):
        table.add_column(heading, justify="right")
    for each in found:
        measured = "yes" if each.measured else "no"
        table.add_row(f"{each.context:,}", f"{each.plain_ms:.1f}", f"{each.best_ms:.1f}", measured)
    screen.out.print(table)
