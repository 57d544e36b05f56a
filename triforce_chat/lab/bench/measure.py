"""Stacks side by side on the same prompts: medians of repeats, prefill and memory beside them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from triforce_chat.chat.events import Tally
from triforce_chat.engine.cache.full import QUERY_WINDOW
from triforce_chat.engine.engine import PLAIN, Engine, Request
from triforce_chat.engine.events import Prefilled
from triforce_chat.engine.exactness import Differences, differences
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.lab.bench.baselines import baselines
from triforce_chat.lab.bench.case_calibrations import CaseCalibrations
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.peer import Peer
from triforce_chat.lab.bench.row import Measured, Read, Row, Run, against, row_of
from triforce_chat.lab.bench.stock import Stock
from triforce_chat.lab.machine import finish, peak_bytes, reset_peak
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.progress import Note
from triforce_chat.settings.engine_options import sampling_of, stack_for
from triforce_chat.settings.settings import Settings

STOCK = "transformers"
# What draws a text where plain decoding takes long, also where weights are streamed, for which a middle level waits.
QUICK, QUICK_STREAMED = "triforce", "auto"
PATIENCE = 60.0  # seconds
WARMUP = 32  # tokens
MOST_RUNS = 1000  # of a case on a prompt
OTHER_SEED = (
    1 << 40
)  # flipped in the seed of a text that is drawn, so that drafts of it pass by other numbers

OnRun = Callable[[int, int, Case, Run], None]  # tokens of the prompt, its number, what was measured on it


def ignore_run(_context: int, _prompt: int, _case: Case, _run: Run) -> None:
    """Nobody waits."""


class Bench:
    """Runs cases on one engine; a prefill that takes more than ``PATIENCE`` is measured once.

    ``warmup`` tokens are decoded before the first run of every case on every prompt: kernels are compiled
    and most graphs captured meanwhile. Each case goes on from what its planners have learnt on earlier prompts. Without
    a warm-up nothing is known, each case reads the prompt by itself, and its first run is what a person's first answer
    would be. ``past_end`` makes every answer as long as was asked for. After an interrupt or an error, what has been
    measured stands, and ``ended`` is what ended it. Plain decoding stops after ``plain_tokens``, where each takes long,
    and is warmed up with a quarter of them at most.

    ``same_text``: plain decoding first draws an answer to each prompt at each temperature, of the longest length asked
    for, and every case decodes that text, accepting drafts as often as if it had sampled it by itself. The same random
    numbers decide that in all cases, but for trees, so that a factor between two is no matter of luck. With
    ``plain_tokens`` the stack ``triforce`` draws the text, or ``auto`` where weights are streamed: their texts have the
    same distribution.
    """

    def __init__(
        self,
        engine: EngineProtocol,
        loaded: LoadedModel,
        repeats: int,
        warmup: int = WARMUP,
        past_end: bool = False,
        on_run: OnRun = ignore_run,
        plain_tokens: int | None = None,
        same_text: bool = False,
        calibrations: CaseCalibrations | None = None,
    ) -> None:
        self.engine, self.loaded = engine, loaded
        self.calibrations = calibrations or CaseCalibrations()  # that the engine was loaded with
        self.repeats, self.warmup, self.on_run = repeats, warmup, on_run
        # A text that was drawn has no end.
        self.past_end, self.same_text = past_end or same_text, same_text
        self.plain_tokens = plain_tokens
        self.ended: KeyboardInterrupt | Exception | None = None
        # By the tokens of a prompt and of an answer.
        self.plain_greedy: dict[tuple[int, int], Measured] = {}
        self.prompt = 0  # the current one
        # Of it: texts by the temperature that was set, and how they were drawn by a case's footing.
        self.texts: dict[float | None, list[int]] = {}
        self.drawn: dict[tuple[float | None, int], tuple[Run, int]] = {}

    def rows(self, prompts: Sequence[Sequence[int]], cases: Sequence[Case]) -> Iterator[Row]:
        """Every case on the same prompts of one length, each of which is prefilled once for all."""
        read, measured = Read(len(prompts[0])), [Measured(case) for case in cases]
        with self._ending():
            for n, ids in enumerate(prompts):
                self.prompt = n
                if self.warmup:
                    self._read(ids, read)
                self._draw(ids, cases)
                for each in measured:
                    self._measure(n, ids, each, read)
        plain = {each.case.footing: each for each in measured if each.case.plain and each.runs}
        for (_, tokens), each in plain.items():
            if sampling_of(each.case.settings, self.loaded).greedy:
                self.plain_greedy[read.context, tokens] = each
        for each in measured:
            if each.runs:
                temperature = sampling_of(each.case.settings, self.loaded).temperature
                row = row_of(each, temperature, read, self.lengths(each.case.settings)[0], self.same_text)
                base = plain.get(each.case.footing)
                yield row if base is None else against(row, each, base, self.plain_tokens)

    def stock(self, stock: Stock, ids: Sequence[int], tokens: int) -> Row:
        """Stock generate on the same prompt."""
        reset_peak()
        runs = [stock.measure(ids, tokens) for _ in range(self.repeats)]
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
            tokens=tokens,
            tokens_per_round=1.0,
            acceptance={},
            fresh=None,
            peak_bytes=peak_bytes(),
        )

    def baselines(self, ids: Sequence[int], rows: Sequence[Row], note: Note) -> Iterator[Row]:
        """Other ways to decode over keys and values in host memory, beside those rows that are of plain decoding."""
        assert isinstance(self.engine, Engine)
        plain = [row for row in rows if row.contender == PLAIN.name]
        with self._ending():
            yield from baselines(self.engine, self.loaded, ids, plain, self.repeats, note)

    def peer(self, peer: Peer, prompts: Sequence[Sequence[int]], tokens: int) -> Iterator[Row]:
        """Another program on the same prompts of one length."""
        plain = self.plain_greedy.get((len(prompts[0]), tokens))
        with self._ending():
            yield from peer.rows(prompts, tokens, self.repeats, plain, self.plain_tokens)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """An interrupt or an error ends all measurements, but takes nothing from what was measured before."""
        try:
            yield
        except (KeyboardInterrupt, Exception) as end:
            self.ended = end

    def warm(self, ids: Sequence[int], settings: Settings, learns: bool = True) -> None:
        """Put a stack on the prefilled prompt, alone in memory, and let it do everything for the first time.

        If it ``learns``, it goes on from what it has learnt with these settings.
        """
        self.engine.restack(stack_for(replace(settings, stack=PLAIN.name), self.loaded))
        gc.collect()  # the stack before it, with its graphs: a small card has no room for two
        reset_peak()
        self.calibrations.use(settings if learns and self.warmup else None)
        self.engine.restack(stack_for(settings, self.loaded))
        if tokens := self.lengths(settings)[0]:
            self.engine.prepare(self.request(ids, settings, tokens))
            self.answer(ids, settings, tokens)

    def lengths(self, settings: Settings) -> tuple[int, int]:
        """Tokens of a stack's warm-up and of its answer."""
        warmup, tokens = self.warmup, settings.max_tokens
        if settings.stack != PLAIN.name or self.plain_tokens is None:
            return warmup, tokens
        return min(warmup, max(1, self.plain_tokens // 4)), min(tokens, self.plain_tokens)

    def answer(self, ids: Sequence[int], settings: Settings, tokens: int, run: int | None = None) -> Run:
        """Decode as one does after a prefill: the last tokens are read again, whose queries choose chunks.

        ``run``: its number, if its tests are those of the other cases' runs of that number on the prompt.
        """
        self.engine.settle(ids[: max(1, len(ids) - QUERY_WINDOW)])
        tally, started, before = Tally(), time.perf_counter(), self.engine.expected
        request = self.request(ids, settings, tokens)
        if run is not None and request.forced:
            request = replace(request, luck=MOST_RUNS * self.prompt + run)
        for event in self.engine.answer(request):
            tally.add(event)
            if isinstance(event, Prefilled) and event.done == event.total:
                # The device has yet to finish its work.
                finish(self.engine.target.device)
                started = time.perf_counter()
        finish(self.engine.target.device)
        return Run(tally, time.perf_counter() - started, self.engine.expected.since(before))

    def differences(self, ids: Sequence[int], settings: Settings, run: Run) -> Differences:
        """What plain decoding's scores say against a greedy answer."""
        return differences(self.engine, self.request(ids, settings, settings.max_tokens), run.tally.token_ids)

    def request(self, ids: Sequence[int], settings: Settings, tokens: int) -> Request:
        forced = self.texts.get(settings.temperature, ())
        return Request(ids, tokens, sampling_of(settings, self.loaded), past_end=self.past_end, forced=forced)

    def prefill(self, ids: Sequence[int]) -> float:
        """Read a prompt from nothing; returns tokens per second."""
        self.engine.settle([0])
        started = time.perf_counter()
        for _ in self.engine.prefill(ids[:-1]):
            pass
        finish(self.engine.target.device)
        return (len(ids) - 1) / (time.perf_counter() - started)

    def _read(self, ids: Sequence[int], read: Read) -> None:
        """Prefill some times; the last one stands."""
        reset_peak()
        rates = [self.prefill(ids)]
        if len(ids) < PATIENCE * rates[0]:
            rates += [self.prefill(ids) for _ in range(self.repeats - 1)]
        read.rates += rates
        read.peak = max(read.peak, peak_bytes())

    def _draw(self, ids: Sequence[int], cases: Sequence[Case]) -> None:
        """Draw the texts that all cases decode after a prefilled prompt; that is plain decoding's first run."""
        self.texts, self.drawn = {}, {}
        quick = QUICK if self.loaded.streamed is None else QUICK_STREAMED
        stack = PLAIN.name if self.plain_tokens is None else quick
        for settings in drawing(cases, stack) if self.same_text else ():
            self.warm(ids, settings, learns=False)  # nothing of the text that cases are measured on
            run = self.answer(ids, settings, settings.max_tokens)
            self.texts[settings.temperature] = run.tally.token_ids
            self.drawn[settings.temperature, settings.max_tokens] = run, peak_bytes()

    def _measure(self, n: int, ids: Sequence[int], into: Measured, read: Read) -> None:
        """All runs of a case on a prompt, which is prefilled unless there is no warm-up."""
        settings = into.case.settings
        runs, peak = self._drawn_run(into.case)
        for run in runs:
            self.on_run(len(ids), n, into.case, run)
        if len(runs) < self.repeats:
            started = time.perf_counter()
            self.warm(ids, settings)
            into.warmup_s = max(into.warmup_s, time.perf_counter() - started)
            if not self.warmup:
                self.engine.settle([0])
            while len(runs) < self.repeats:
                runs.append(self.answer(ids, settings, self.lengths(settings)[1], len(runs)))
                self.on_run(len(ids), n, into.case, runs[-1])
            peak = max(peak, peak_bytes())
        first = runs[0].tally.finished
        if not self.warmup and first is not None:
            read.rates.append(first.prompt_tokens / first.prefill_s)
        greedy = sampling_of(settings, self.loaded).greedy
        chosen = greedy and not self.same_text  # forced tokens say nothing about a stack's own
        into.add(runs, peak, self.differences(ids, settings, runs[-1]) if chosen else None)

    def _drawn_run(self, case: Case) -> tuple[list[Run], int]:
        """The run of a case that drew the text of the present prompt, if there is one, and the memory that it took.

        A first answer that reads the prompt itself is none.
        """
        found = self.drawn.get(case.footing)
        if found is None or not (case.plain and self.warmup and self.plain_tokens is None):
            return [], 0
        return [found[0]], found[1]


def drawing(cases: Sequence[Case], stack: str = PLAIN.name) -> list[Settings]:
    """One stack at each temperature, for the longest answer there."""
    longest: dict[float | None, Settings] = {}
    for settings in sorted((case.settings for case in cases), key=lambda each: each.max_tokens):
        longest[settings.temperature] = drawn_by(settings, stack)
    return list(longest.values())


def drawn_by(settings: Settings, stack: str = PLAIN.name) -> Settings:
    """A stack that draws the text which all cases with these settings decode."""
    seed = None if settings.seed is None else settings.seed ^ OTHER_SEED
    return replace(settings, stack=stack, seed=seed)
