"""What the bench of kernels measures, by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.lab.bench.kernel_cases.attention import (
    attention_cases,
    copied_cases,
    kv_format_cases,
    listed_cases,
    weighed_cases,
)
from triforce_chat.lab.bench.kernel_cases.case import Case, Model
from triforce_chat.lab.bench.kernel_cases.draft import WIDTHS, draft_cases, tree_cases
from triforce_chat.lab.bench.kernel_cases.linear import (
    QUANTIZED_VOCABULARY,
    linear_cases,
    linear_sweep,
    quantized_cases,
    quantized_sweep,
)
from triforce_chat.lab.bench.kernel_cases.selection import gather_cases, score_cases, selected_cases
from triforce_chat.lab.bench.kernel_cases.token import token_cases

MODELS = (
    Model("7b", 4096, 32, 32, 128, 11_008),
    Model("8b-gqa", 4096, 32, 8, 128, 14_336),
    Model("default", 576, 9, 3, 64, 1_536),
)
LENGTHS = (4_100, 8_300, 124_900)
TOKENS = (1, 8, 17)
BUDGET = Budget(tokens=4096)
TINY = ((Model("tiny", 32, 4, 2, 16, 48),), (70,), (1, 3), Budget(tokens=32, sinks=8, tail=8))
FEW = (1, 2, 4, 8, 16, 32, 64)  # rows of decoding and of verifying, also of trees
SECTIONS = (
    "attention",
    "listed",
    "weighed",
    "copied",
    "kept",
    "sweep-attention",
    "sweep-copied",
    "linear",
    "sweep-linear",
    "quantized",
    "sweep-quantized",
    "token",
    "draft",
    "level",
    "score",
    "gather",
)


def cases(tiny: bool, sections: Sequence[str]) -> Iterator[Callable[[], Iterator[Case]]]:
    """Makers of the sections' cases; each makes its buffers only when it is called."""
    makers = [*_plain_cases(*TINY)] if tiny else [*_plain_cases(MODELS, LENGTHS, TOKENS, BUDGET), *_sweeps()]
    few, of, words = ((1,), TINY[0][0], 64) if tiny else (FEW, MODELS[1], QUANTIZED_VOCABULARY)
    drafts = product(("tiny",) if tiny else ("small", "llama-68m"), (1, 5), (0.0, 0.6))
    makers += [("draft", partial(draft_cases, *each)) for each in drafts]
    leveled = product(("tiny",), (2,), (0.6,)) if tiny else product(("small",), WIDTHS, (0.0, 0.6))
    makers += [("level", partial(tree_cases, *each)) for each in leveled]
    makers += [("quantized", partial(quantized_cases, of, n, words)) for n in few]
    order = {section: at for at, section in enumerate(sections)}
    for _, maker in sorted((each for each in makers if each[0] in order), key=lambda each: order[each[0]]):
        yield maker


def _plain_cases(
    models: Sequence[Model], lengths: Sequence[int], tokens: Sequence[int], budget: Budget
) -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    for model, length, n in product(models, lengths, tokens):
        yield "attention", partial(attention_cases, model, length, n, False)
    for model, n in product(models, tokens):
        yield "copied", partial(copied_cases, model, max(lengths[-1], 3 * GROUP), n)
        yield "linear", partial(linear_cases, model, n)
        yield "token", partial(token_cases, model, n)
    for model in models:
        yield "listed", partial(listed_cases, model, lengths[-1], min(8, tokens[-1]), budget)
        yield "weighed", partial(weighed_cases, model, lengths[-1], min(8, tokens[-1]))
        for n in sorted({tokens[0], min(8, tokens[-1])}):
            yield "kept", partial(kv_format_cases, model, max(lengths[-1], 3 * GROUP), n)
        yield "weighed", partial(selected_cases, model, lengths[-1], budget)
        yield "score", partial(score_cases, model, lengths[-1], min(16, tokens[-1]))
        yield "gather", partial(gather_cases, model, lengths[-1], budget)


def _sweeps() -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    short, *_, long = LENGTHS
    for n, length in product((1, 17), (short, long)):
        yield "sweep-attention", partial(attention_cases, MODELS[0], length, n, True)
    for n in (8, 17):
        yield "sweep-copied", partial(copied_cases, MODELS[0], long, n, True)
    yield "sweep-linear", partial(linear_sweep, MODELS[0], (8, 4))
    for n in (8, 17):
        yield "sweep-quantized", partial(quantized_sweep, MODELS[1], n)
    for model, n in ((MODELS[1], 1), (MODELS[1], 17), (MODELS[2], 8)):
        yield "sweep-attention", partial(attention_cases, model, long, n, True)
