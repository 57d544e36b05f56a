"""Stacks side by side on the same prompts: medians of repeats, prefill and memory beside them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from triforce_chat.bench.machine import peak_bytes, reset_peak
from triforce_chat.bench.stock import Stock
from triforce_chat.chat_format import ChatFormat, Message
from triforce_chat.config import Settings
from triforce_chat.documents import Document
from triforce_chat.engine.answering import Answering
from triforce_chat.engine.engine import PLAIN, Request
from triforce_chat.engine.events import LevelTally, Tally
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.evaluation.means import Sum, mean
from triforce_chat.models.load import LoadedModel
from triforce_chat.prompts import prompt
from triforce_chat.wiring import sampling_of, stack_of

STOCK = "transformers"
PATIENCE = 60.0  # seconds
VARIABLE = ("budget", "chunk", "gamma", "draft-gamma", "policy", "middle")


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one context length; spreads are (smallest, largest) of all runs."""

    contender: str
    context: int
    prompts: int
    temperature: float
    varied: Mapping[str, str]  # settings that were varied, as they are typed
    ms_per_token: float
    spread_ms: tuple[float, float]
    prefill_tokens_per_s: float
    tokens: int
    tokens_per_round: float
    acceptance: dict[str, float | None]
    peak_bytes: int
    predicted_ms_per_token: float | None = None  # by the planner; what it tries out is not foretold
    speedup: float | None = None  # over our own plain decoding of the same prompts; a mean over them
    speedup_error: float | None = None  # of that mean, from how the prompts differ
    same_tokens: bool | None = None  # as our own plain decoding; with chance in it that says nothing


@dataclass(frozen=True, slots=True)
class Run:
    """One answer."""

    tally: Tally
    predicted_ms: float | None = None  # per token, by the planner


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured on every prompt."""

    settings: Settings
    varied: Mapping[str, str]

    @property
    def plain(self) -> bool:
        return self.settings.stack == PLAIN.name


def cases(
    settings: Settings, stacks: Sequence[str], temperatures: Sequence[float], vary: Sequence[str]
) -> list[Case]:
    """Every stack at every temperature with every combination of ``vary``, each item like "budget=512,1024".

    Plain decoding, which knows none of these settings, comes once at each temperature. Raises UsageError.
    """
    choices = [_choices(text) for text in vary]
    if len({name for [(name, _), *_] in choices}) < len(choices):
        raise UsageError("--vary names a setting twice; write all its values in one, as in gamma=4,8")
    if settings.seed is not None and "auto" in stacks:
        raise UsageError("with --seed the stack auto drafts by lookup alone; leave it out of --stacks")
    heats: list[float | None] = [*temperatures] or [settings.temperature]
    made = []
    for temperature, stack in product(heats, stacks):
        base = replace(settings, temperature=temperature, stack=stack)
        for chosen in product(*choices) if stack != PLAIN.name else [()]:
            changed = reduce(lambda so_far, pair: so_far.with_text(*pair), chosen, base)
            made.append(Case(changed, dict(chosen)))
    return made


def _choices(text: str) -> list[tuple[str, str]]:
    name, _, values = text.partition("=")
    if name not in VARIABLE or not values:
        raise UsageError(
            f"'{text}' varies nothing; write for example budget=512,1024 ({', '.join(VARIABLE)})"
        )
    return [(name, value) for value in values.split(",")]


def prompts_of(
    loaded: LoadedModel, documents: Sequence[Document], length: int, count: int
) -> list[list[int]]:
    """Requests to summarize exactly ``length`` tokens each of the documents.

    They begin with one document after the other, and once all have been the first, further inside them.
    """
    form = ChatFormat(loaded.tokenizer)
    texts = [form.text(document.text + "\n\n") for document in documents]
    made = []
    for n in range(count):
        first, round_ = n % len(texts), n // len(texts)
        text = [token for part in (*texts[first:], *texts[:first]) for token in part]
        made.append(_prompt(form, text[round_ * length :], length))
    return made


def _prompt(form: ChatFormat, text: Sequence[int], length: int) -> list[int]:
    question = form.text("\n\n" + prompt("summarize"))
    room = length - len(form.render([Message("user", question)]))
    if room > len(text):
        raise DoesNotFit(
            f"the documents have {len(text):,} tokens left for a prompt; a context of {length:,} needs {room:,}"
        )
    return form.render([Message("user", [*text[: max(room, 0)], *question])])


class Bench:
    """Runs cases on one engine; a prefill that takes more than ``PATIENCE`` is measured once."""

    def __init__(self, engine: Answering, loaded: LoadedModel, tokens: int, repeats: int) -> None:
        self.engine, self.loaded = engine, loaded
        self.tokens, self.repeats = tokens, repeats

    def rows(self, prompts: Sequence[Sequence[int]], cases: Sequence[Case]) -> Iterator[Row]:
        """Every case on the same prefilled prompts of one length, in turn within each repeat."""
        reset_peak()
        rates: list[float] = []
        runs: list[list[list[Run]]] = [[] for _ in cases]  # by case and prompt
        for ids in prompts:
            rates += self._prefills(ids)
            for each in runs:
                each.append([])
            for _, (case, each) in product(range(self.repeats), list(zip(cases, runs, strict=True))):
                each[-1].append(self._decode(ids, case.settings))
        plain = {
            case.settings.temperature: each for case, each in zip(cases, runs, strict=True) if case.plain
        }
        for case, each in zip(cases, runs, strict=True):
            row = self._row(case, len(prompts[0]), each, statistics.median(rates))
            base = plain.get(case.settings.temperature)
            yield row if base is None else _against(row, each, base)

    def stock(self, stock: Stock, ids: Sequence[int]) -> Row:
        """Stock generate on the same prompt."""
        reset_peak()
        runs = [stock.measure(ids, self.tokens) for _ in range(self.repeats)]
        each = [ms for _, ms in runs]
        return Row(
            contender=STOCK,
            context=len(ids),
            prompts=1,
            temperature=0.0,
            varied={},
            ms_per_token=statistics.median(each),
            spread_ms=(min(each), max(each)),
            prefill_tokens_per_s=len(ids) / statistics.median(seconds for seconds, _ in runs),
            tokens=self.tokens,
            tokens_per_round=1.0,
            acceptance={},
            peak_bytes=peak_bytes(),
        )

    def _prefills(self, ids: Sequence[int]) -> list[float]:
        """Tokens per second of some prefills from nothing; the last one stands."""
        rates = [self._prefill(ids)]
        if len(ids) < PATIENCE * rates[0]:
            rates += [self._prefill(ids) for _ in range(self.repeats - 1)]
        return rates

    def _prefill(self, ids: Sequence[int]) -> float:
        self.engine.settle([0])
        last = list(self.engine.prefill(ids[:-1]))[-1]
        return last.total / last.seconds

    def _decode(self, ids: Sequence[int], settings: Settings) -> Run:
        self.engine.restack(stack_of(settings, self.loaded.context))
        tally = Tally()
        request = Request(ids, self.tokens, sampling_of(settings, self.loaded))
        for event in self.engine.answer(request):
            tally.add(event)
        return Run(tally, self.engine.predicted_ms)

    def _row(self, case: Case, context: int, runs: Sequence[Sequence[Run]], rate: float) -> Row:
        every = [run.tally for same_prompt in runs for run in same_prompt]
        each = [tally.ms_per_token for tally in every]
        told = [run.predicted_ms for same_prompt in runs for run in same_prompt if run.predicted_ms]
        return Row(
            contender=case.settings.stack,
            context=context,
            prompts=len(runs),
            temperature=sampling_of(case.settings, self.loaded).temperature,
            varied=case.varied,
            ms_per_token=statistics.median(each),
            spread_ms=(min(each), max(each)),
            prefill_tokens_per_s=rate,
            tokens=sum(len(same_prompt[-1].tally.token_ids) for same_prompt in runs),
            tokens_per_round=statistics.mean(tally.tokens_per_round for tally in every),
            acceptance=_acceptance(every),
            peak_bytes=peak_bytes(),
            predicted_ms_per_token=statistics.median(told) if told else None,
        )


def _acceptance(tallies: Sequence[Tally]) -> dict[str, float | None]:
    """How often each level's proposals passed, over all runs."""
    pooled: dict[str, LevelTally] = {}
    for tally in tallies:
        for level, count in tally.levels.items():
            pooled.setdefault(level, LevelTally()).join(count)
    return {level: count.acceptance for level, count in pooled.items()}


def _against(row: Row, runs: Sequence[Sequence[Run]], plain: Sequence[Sequence[Run]]) -> Row:
    """A row beside plain decoding of the same prompts."""
    pairs = list(zip(runs, plain, strict=True))
    ratios = [_median_ms(base) / _median_ms(own) for own, base in pairs if _median_ms(own)]
    found = mean([Sum(ratio, 1) for ratio in ratios])
    same = all(
        a.tally.token_ids == b.tally.token_ids for own, base in pairs for a, b in zip(own, base, strict=True)
    )
    return replace(
        row,
        speedup=found.value if found else None,
        speedup_error=found.error if found else None,
        same_tokens=None if row.temperature else same,
    )


def _median_ms(runs: Sequence[Run]) -> float:
    return statistics.median(run.tally.ms_per_token for run in runs)
