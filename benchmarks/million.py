"""The speed of stacks behind a document of a million tokens that is read once, and ten facts planted into it.

    python benchmarks/million.py NOVEL.txt... --tokens 1000000 [--offload]

All stacks decode the same text, which the stack triforce draws, as with `bench --same-text --plain-tokens`. Every run
is shown as it ends. Then each fact is asked for, greedily, by plain decoding; not with --offload, where a token takes
long and is the same. Prints a record as JSON: that of `bench`, with the answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from triforce_chat.chat.template import ChatFormat
from triforce_chat.cli.bench import BenchOptions, conditions, open_bench, plan_bench
from triforce_chat.cli.output import print_record, screen_of
from triforce_chat.documents import read
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.row import Run
from triforce_chat.lab.evaluation.answers import facts
from triforce_chat.lab.evaluation.tasks import planted_set
from triforce_chat.lab.tasks.books import Book
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.settings.options import Options

ASKED = 256  # tokens of the context for a question and its answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("novels", nargs="+")
    parser.add_argument("--model", default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of the document")
    parser.add_argument(
        "--context", type=int, default=1_048_576, help="tokens that positions are stretched to"
    )
    parser.add_argument("--made", type=int, default=128, help="tokens of the text that is decoded")
    parser.add_argument("--plain-tokens", type=int, default=16)
    parser.add_argument("--stacks", default="autoregressive,triforce")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--offload", action="store_true", help="keys and values in host memory")
    print_record(measured(parser.parse_args()))


def tell(_context: int, _prompt: int, case: Case, run: Run) -> None:
    """Show what was just measured."""
    print(f"{case.name}: {run.ms_per_token:.2f} ms/token", file=sys.stderr, flush=True)


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """The record."""
    options = Options(
        model=asked.model,
        device=asked.device,
        context=asked.context,
        offload=asked.offload,
        temperature=asked.temperature,
        repetition_penalty=1.0,
        no_cache=True,
    )
    chosen = BenchOptions(
        contexts=str(asked.tokens + ASKED),
        stacks=asked.stacks,
        tokens=asked.made,
        repeats=1,
        warmup=16,
        plain_tokens=asked.plain_tokens,
        same_text=True,
    )
    recipe = plan_bench(chosen, options, None, None)
    run, seconds = open_bench(recipe, options, screen_of(options))
    run.heard = tell
    form, engine = ChatFormat(run.loaded.tokenizer), run.engine
    assert isinstance(engine, Engine)
    texts = map(read, asked.novels)
    builder = ExampleBuilder(
        run.loaded.tokenizer, [Book.of(each.title, each.text, form.encode) for each in texts]
    )
    (case,) = cases = planted_set(builder, asked.tokens, documents=1, seed=0)
    rows = [*run.rows([[*case.prefix, *case.questions[0].suffix]], recipe.cases)]
    if run.ended:
        raise run.ended
    found = [] if asked.offload else [*facts(engine, asked.tokens, cases, Sampling(), form.stop)]
    there = [each for each in found if each.kind != "absent"]
    return {
        **conditions(recipe, run, seconds),
        "command": " ".join(["python", "benchmarks/million.py", *sys.argv[1:]]),
        "rows": [dataclasses.asdict(row) for row in rows],
        "profiles": [],
        "facts": {"right": sum(each.right for each in there), "asked": len(there)},
        "answers": [dataclasses.asdict(each) for each in found],
    }


if __name__ == "__main__":
    main()
