"""From runs to the figures of one contender at one context length."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from triforce_chat.chat.events import LevelTally, Tally
from triforce_chat.engine.exactness import Differences
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.confidence import interval


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
    tokens: int  # of one answer to each prompt, together
    tokens_per_round: float
    acceptance: dict[str, float | None]
    fresh: float | None  # share of the answers' runs of four tokens that had not come before in them
    peak_bytes: int  # while this contender decoded
    prefill_peak_bytes: int | None = None  # while the prompts were read
    warmup: int = 0  # tokens that were decoded before each prompt's first run, and not counted
    warmup_s: float | None = None  # what the longest of these took: graphs, compiled kernels
    predicted_ms_per_token: float | None = None  # by the planner; what its trials cost is not predicted
    plain_ms_per_token: float | None = None  # our own plain decoding at this temperature and length
    speedup: float | None = None  # over that, on the same prompts; a mean over them
    speedup_together: float | None = None  # all the prompts' time, plainly, over all of it so
    speedup_error: float | None = None  # of that mean, from how the prompts differ
    speedup_interval: tuple[float, float] | None = None  # with 95 %
    speedups: list[float] = field(default_factory=list)  # prompt by prompt
    same_text: bool = False  # it decoded the text that plain decoding had drawn
    # As our own plain decoding, as far as that went; None with chance in it, and where the tokens were given.
    same_tokens: bool | None = None
    # Of greedy tokens those that plain decoding after the same ones would not have chosen, by scoring all again:
    ties: int | None = None  # within rounding of the best
    mismatches: int | None = None  # and below it
    widest_tie: float | None = None  # how far the worst of all lies below the best, in logits
    # Of a peer's greedy tokens those before the first that differs from our own plain decoding's; over all prompts.
    leading_equal: int | None = None
    # By level: tokens that a verification makes, the one that it samples included; none of another program.
    tokens_per_verification: dict[str, float] = field(default_factory=dict)
    # Share of the tokens by who drafted in their rounds
    drafters: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One answer; ``seconds`` of decoding, until the device was done."""

    tally: Tally
    seconds: float
    predicted_ms: float | None = None  # per token, by the planner

    @property
    def ms_per_token(self) -> float:
        made = len(self.tally.token_ids)
        return 1000 * self.seconds / made if made else 0.0


@dataclass(slots=True)
class Measured:
    """What was measured of one case: runs by prompt, and the most memory that any of them took."""

    case: Case
    runs: list[list[Run]] = field(default_factory=list)
    peak: int = 0
    warmup_s: float = 0.0  # the longest
    differences: list[Differences] = field(default_factory=list)  # by prompt, greedy only

    @property
    def every(self) -> list[Run]:
        return [run for same_prompt in self.runs for run in same_prompt]

    def add(self, runs: list[Run], peak: int, differences: Differences | None = None) -> None:
        self.runs.append(runs)
        self.peak = max(self.peak, peak)
        self.differences += [] if differences is None else [differences]


@dataclass(slots=True)
class Read:
    """How the prompts of one length were read."""

    context: int
    rates: list[float] = field(default_factory=list)  # tokens per second
    peak: int = 0


def row_of(measured: Measured, temperature: float, read: Read, warmup: int, same_text: bool = False) -> Row:
    """The figures of one case by itself."""
    case, runs = measured.case, measured.every
    each = [run.ms_per_token for run in runs]
    predictions, tallies = [run.predicted_ms for run in runs if run.predicted_ms], [run.tally for run in runs]
    return Row(
        contender=case.settings.stack,
        context=read.context,
        prompts=len(measured.runs),
        temperature=temperature,
        varied=case.varied,
        ms_per_token=statistics.median(each),
        spread_ms=(min(each), max(each)),
        prefill_tokens_per_s=statistics.median(read.rates),
        tokens=sum(len(same_prompt[-1].tally.token_ids) for same_prompt in measured.runs),
        tokens_per_round=statistics.mean(tally.tokens_per_round for tally in tallies),
        acceptance=acceptance(tallies),
        tokens_per_verification=tokens_per_verification(tallies),
        drafters=drafters(tallies),
        fresh=fresh([same_prompt[-1].tally.token_ids for same_prompt in measured.runs]),
        peak_bytes=measured.peak,
        prefill_peak_bytes=read.peak,
        warmup=warmup,
        warmup_s=measured.warmup_s,
        predicted_ms_per_token=statistics.median(predictions) if predictions else None,
        same_text=same_text,
        ties=sum(each.ties for each in measured.differences) if measured.differences else None,
        mismatches=sum(each.mismatches for each in measured.differences) if measured.differences else None,
        widest_tie=max(each.widest for each in measured.differences) if measured.differences else None,
    )


def acceptance(tallies: Sequence[Tally]) -> dict[str, float | None]:
    """How often each level's proposals passed, over all runs."""
    return {level: count.acceptance for level, count in by_level(tallies).items()}


def tokens_per_verification(tallies: Sequence[Tally]) -> dict[str, float]:
    """What a verification of each level makes on average: the tokens that pass, and one more."""
    counts = by_level(tallies).items()
    return {level: 1 + count.accepted / count.rounds for level, count in counts if count.rounds}


def drafters(tallies: Sequence[Tally]) -> dict[str, float]:
    """The share of the tokens by who drafted in their rounds, largest first; "" for those without a draft."""
    counts = sum((Counter(tally.drafters) for tally in tallies), Counter[str]())
    return {name: count / counts.total() for name, count in counts.most_common()}


def by_level(tallies: Sequence[Tally]) -> dict[str, LevelTally]:
    """What each level verified, over all runs."""
    pooled: dict[str, LevelTally] = {}
    for tally in tallies:
        for level, count in tally.levels.items():
            pooled.setdefault(level, LevelTally()).join(count)
    return pooled


def fresh(answers: Sequence[Sequence[int]]) -> float | None:
    """How little answers repeat themselves: repetitive text is easy to predict."""
    counts = [(len(set(zip(*(ids[i:] for i in range(4)), strict=False))), len(ids) - 3) for ids in answers]
    whole = sum(max(0, possible) for _, possible in counts)
    return sum(different for different, _ in counts) / whole if whole else None


def against(row: Row, own: Measured, plain: Measured, plain_tokens: int | None = None) -> Row:
    """A row beside plain decoding of the same prompts, which may have stopped after ``plain_tokens``."""
    pairs = list(zip(own.runs, plain.runs, strict=False))  # an interrupt leaves some prompts to one of them
    ratios = [_median_ms(base) / _median_ms(runs) for runs, base in pairs if _median_ms(runs)]
    found, likely = statistics.fmean(ratios) if ratios else None, interval(ratios)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
    same = all(
        a.tally.token_ids[:plain_tokens] == b.tally.token_ids
        for runs, base in pairs
        for a, b in zip(runs, base, strict=True)
    )
    return replace(
        row,
        plain_ms_per_token=statistics.median(run.ms_per_token for run in plain.every),
        speedup=found,
        speedup_together=statistics.harmonic_mean(ratios) if ratios else None,
        speedup_error=error,
        speedup_interval=likely,
        speedups=ratios,
        same_tokens=None if row.temperature or row.same_text else same,
    )


def _median_ms(runs: Sequence[Run]) -> float:
    return statistics.median(run.ms_per_token for run in runs)
