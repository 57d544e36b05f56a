"""Stacks side by side at growing context lengths: medians of repeats, prefill and memory beside them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from triforce_chat.bench.machine import peak_bytes, reset_peak
from triforce_chat.bench.stock import Stock
from triforce_chat.chat_format import ChatFormat, Message
from triforce_chat.config import Settings
from triforce_chat.documents import Document
from triforce_chat.engine.answering import Answering
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Tally
from triforce_chat.errors import DoesNotFit
from triforce_chat.models.load import LoadedModel
from triforce_chat.prompts import prompt
from triforce_chat.wiring import sampling_of, stack_of

STOCK = "transformers"
PATIENCE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one context length; spreads are (smallest, largest)."""

    contender: str
    context: int
    ms_per_token: float
    spread_ms: tuple[float, float]
    prefill_tokens_per_s: float
    tokens: int
    tokens_per_round: float
    acceptance: dict[str, float | None]
    peak_bytes: int
    speedup: float | None = None  # over our own plain decoding at the same context
    same_tokens: bool | None = None  # as our own plain decoding


def prompt_of(loaded: LoadedModel, documents: Sequence[Document], length: int) -> list[int]:
    """A request to summarize as much of the documents as makes exactly ``length`` tokens."""
    form = ChatFormat(loaded.tokenizer)
    text = form.text("\n\n".join(document.text for document in documents))
    question = form.text("\n\n" + prompt("summarize"))
    room = length - len(form.render([Message("user", question)]))
    if room > len(text):
        raise DoesNotFit(f"the documents have {len(text):,} tokens; a context of {length:,} needs {room:,}")
    return form.render([Message("user", text[: max(room, 0)] + question)])


class Bench:
    """Runs contenders on one engine; a prefill that takes more than ``PATIENCE`` is measured once."""

    def __init__(
        self, engine: Answering, loaded: LoadedModel, settings: Settings, tokens: int, repeats: int
    ) -> None:
        self.engine, self.loaded, self.settings = engine, loaded, settings
        self.tokens, self.repeats = tokens, repeats

    def stacks(self, ids: Sequence[int], names: Sequence[str]) -> Iterator[Row]:
        """Each stack on the same prefilled prompt, in turn within each repeat."""
        reset_peak()
        rates = [self._prefill(ids)]
        if len(ids) < PATIENCE * rates[0]:
            rates += [self._prefill(ids) for _ in range(self.repeats - 1)]
        runs: dict[str, list[Tally]] = {name: [] for name in names}
        for _ in range(self.repeats):
            for name in names:
                runs[name].append(self._decode(ids, name))
        plain = runs.get("autoregressive")
        for name, tallies in runs.items():
            row = self._row(name, len(ids), tallies, statistics.median(rates))
            yield row if plain is None else _against(row, tallies, plain)

    def stock(self, stock: Stock, ids: Sequence[int]) -> Row:
        """Stock generate on the same prompt."""
        reset_peak()
        runs = [stock.measure(ids, self.tokens) for _ in range(self.repeats)]
        each = [ms for _, ms in runs]
        rate = len(ids) / statistics.median(seconds for seconds, _ in runs)
        spread = (min(each), max(each))
        return Row(STOCK, len(ids), statistics.median(each), spread, rate, self.tokens, 1.0, {}, peak_bytes())

    def _prefill(self, ids: Sequence[int]) -> float:
        """Tokens per second of a prefill from nothing."""
        self.engine.settle([0])
        last = list(self.engine.prefill(ids[:-1]))[-1]
        return last.total / last.seconds

    def _decode(self, ids: Sequence[int], name: str) -> Tally:
        self.engine.restack(stack_of(replace(self.settings, stack=name), self.loaded.context))
        tally = Tally()
        request = Request(ids, self.tokens, sampling_of(self.settings, self.loaded))
        for event in self.engine.answer(request):
            tally.add(event)
        return tally

    def _row(self, name: str, context: int, tallies: list[Tally], rate: float) -> Row:
        each = [tally.ms_per_token for tally in tallies]
        last = tallies[-1]
        return Row(
            contender=name,
            context=context,
            ms_per_token=statistics.median(each),
            spread_ms=(min(each), max(each)),
            prefill_tokens_per_s=rate,
            tokens=len(last.token_ids),
            tokens_per_round=last.tokens_per_round,
            acceptance={level: counts.acceptance for level, counts in last.levels.items()},
            peak_bytes=peak_bytes(),
        )


def _against(row: Row, tallies: list[Tally], plain: list[Tally]) -> Row:
    base = statistics.median(tally.ms_per_token for tally in plain)
    same = all(a.token_ids == b.token_ids for a, b in zip(tallies, plain, strict=True))
    return replace(row, speedup=base / row.ms_per_token if row.ms_per_token else None, same_tokens=same)
