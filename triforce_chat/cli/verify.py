"""``triforce-chat verify``: tests on this machine that speculative decoding is exact."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.engines import compile_ahead, open_answering, with_shown_model
from triforce_chat.cli.output import print_json, print_record, screen_of, show_notes, show_warning
from triforce_chat.cli.reading import read_all
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.errors import ExactnessError, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO

if TYPE_CHECKING:
    from triforce_chat.engine.protocol import EngineProtocol
    from triforce_chat.engine.speculation.stacks import StackOptions
    from triforce_chat.settings.settings import Settings

TOKENS, QUICK_TOKENS = 512, 64  # decoded by each stack in each test
BUDGET = 128  # tokens, far below the text's length: a retrieval cache that holds everything proves nothing


def verify(
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Text to test on.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per stack and test.", show_default=str(TOKENS))
    ] = None,
    quick: Annotated[bool, typer.Option(help=f"Only {QUICK_TOKENS} tokens per stack and test.")] = False,
) -> None:
    """Test that speculative decoding is exact on this machine; --stack auto tests every stack."""
    if quick and tokens:
        raise UsageError("--quick sets the number of tokens itself; leave out --tokens")
    tokens = QUICK_TOKENS if quick else tokens or TOKENS
    from triforce_chat.chat.records import outcome_object
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.prompts import prompt
    from triforce_chat.ui.self_test import show_outcome

    screen = screen_of(options)
    compile_ahead(EngineSpec(tested(options, quantized=False)), screen)  # for GPUs, where none stay
    texts = [document.text for document in read_all(documents or [], options, screen)]
    options = with_shown_model(options, screen)
    from triforce_chat.loading.prepare import stays_quantized

    settings = tested(options, stays_quantized(options.settings))
    warn = partial(show_warning, options, screen)
    engine, target, _ = open_answering(EngineSpec(settings), screen, warn=warn)
    kept = f", keys and values in {target.kv_format}: exact relative to these" if target.kv_format else ""
    show_notes([f"tested with weights in {target.format}{kept}"], screen)
    from triforce_chat.lab.evaluation.exactness_suite import verify_stacks
    from triforce_chat.settings.engine_options import stack_for

    stack = stack_for(settings, target)
    names, reasons = stacks_to_test(options, engine, stack)
    show_notes(reasons, screen)
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
        weights = {"weights": target.format} if target.stored else {}
        kv = {"kv": target.kv_format} if target.kv_format else {}
        print_record({"model": options.model, **weights, **kv, "passed": not failed, "stacks": outcomes})
    if failed:
        raise ExactnessError(f"not exact: {', '.join(failed)}")


def tested(options: Options, quantized: bool) -> Settings:
    """The settings to test with: fp32, unless a dtype is named or the weights stay ``quantized``."""
    return dataclasses.replace(
        options.settings,
        dtype="float32" if options.dtype == AUTO and not quantized else options.dtype,
        budget=options.budget or BUDGET,
    )


def stacks_to_test(
    options: Options, engine: EngineProtocol, stack: StackOptions
) -> tuple[list[str], list[str]]:
    """The stack that the user named, or all that this engine can run with the other options of ``stack``.

    And why each of the others is not tested.
    """
    if options.stack != "auto":
        return [options.stack], []
    able, reasons = [], []
    for name in STACKS:
        try:
            engine.check(dataclasses.replace(stack, name=name))
            able.append(name)
        except UsageError as error:
            reasons.append(f"not tested: {error}")
    return able, reasons
