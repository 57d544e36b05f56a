"""Numbers of an answer as text, shared by the panel, the summary line, /stats and /compare."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from rich.cells import cell_len

from triforce_chat.chat.events import LevelTally, Tally
from triforce_chat.engine.events import Forgot, Prefilled

SEPARATOR = " · "
BARS = "▁▂▃▄▅▆▇█"
REASONS: Mapping[str, str] = {
    "first": "first use",
    "stride": "the text grew",
    "acceptance": "acceptance fell",
    "rewind": "the chat changed",
}
MEASURING = "measuring this machine once, for repeatable answers"
# What can be done about an answer that is not whole where nobody can type, by its end.
UNATTENDED_REMEDIES: Mapping[str, str] = {
    "length": "--max-tokens allows longer answers",
    "repetition": "--loop-guard 0 lets an answer repeat itself",
}


def percent(part: float | None) -> str:
    """A fraction as a percentage; "-" for None."""
    return "-" if part is None else f"{100 * part:.0f} %"


def duration(seconds: float) -> str:
    """Seconds in readable units, such as "3 min 05 s"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def local_time(seconds: float) -> str:
    """Seconds since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def token_rate(tokens: float, seconds: float) -> str:
    """Tokens per second, without false precision."""
    speed = tokens / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f} tokens/s" if speed >= 100 else f"{speed:.1f} tokens/s"


def count(number: int, noun: str) -> str:
    """A number with its noun, which gets an "s" unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def levels_from_top(tally: Tally) -> list[tuple[str, LevelTally]]:
    """Names and counts of the levels, top level first; a copy, because the panel is drawn while events arrive."""
    return sorted(tally.levels.items(), key=lambda item: item[0] != tally.top)


def acceptance_rates(tally: Tally) -> list[str]:
    """The drafts that each level accepted, of those that it tested."""
    rates = [f"{name} {percent(level.acceptance)}" for name, level in levels_from_top(tally) if level.tested]
    return [f"drafts accepted: {', '.join(rates)}"] if rates else []


def context_used(tally: Tally) -> int:
    """Tokens in the context: the prompt and the answer so far."""
    return (tally.prefill.total if tally.prefill else 0) + len(tally.token_ids)


def context_usage(used: int, limit: int) -> str:
    """Used and available tokens of the context; ``limit`` 0: no end of it."""
    if not limit:
        return count(used, "token")
    return f"{used:,} / {limit:,} tokens ({percent(used / limit)})"


def prefill_rate(prefill: Prefilled) -> str:
    """Tokens per second of the part that was not in the cache."""
    return token_rate(prefill.done - prefill.cached, prefill.seconds)


def prefill_summary(tally: Tally) -> list[str]:
    """What was read: how many tokens were new, with their time and rate, and where the others came from.

    Empty if nothing was read.
    """
    prefill = tally.prefill
    if prefill is None:
        return []
    new = prefill.done - prefill.cached
    parts = []
    if new:
        parts = [f"{new:,} new in {duration(prefill.seconds)}", prefill_rate(prefill)]
    if prefill.recalled:
        parts.append(f"{prefill.recalled:,} from disk")
    if prefill.cached > prefill.recalled:
        parts.append(f"{prefill.cached - prefill.recalled:,} from the cache")
    return [f"{count(prefill.done, 'token')} read: {', '.join(parts)}"] if parts else []


def times(number: int) -> str:
    """How often: once, twice, or a number of times."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def summary(tally: Tally) -> list[str]:
    """The main figures of an answer, the most important ones first."""
    if tally.finished is None:
        return prefill_summary(tally)
    built = [f"retrieval cache built {times(len(tally.rebuilds))}"] if tally.rebuilds else []
    return [*pace(tally), *acceptance_rates(tally), *first_token(tally), *built]


def pace(tally: Tally) -> list[str]:
    """How an answer ended, and how fast it was."""
    pieces = [_ending(tally), *([f"forgotten: {forgotten(tally.forgot)}"] if tally.forgot else [])]
    if tally.ms_per_token:
        pieces += [f"{tally.ms_per_token:.1f} ms/token"]
    return [*pieces, *([f"{tally.tokens_per_round:.1f} tokens per round"] if tally.rounds else [])]


def first_token(tally: Tally) -> list[str]:
    """When the answer began; nothing if that is unknown, as for one that was stopped and continued."""
    began = tally.finished.first_token_s if tally.finished else 0.0
    return [f"first token {duration(began)}"] if began and tally.token_ids else []


def forgotten(forgot: Forgot) -> str:
    """How many tokens an endless conversation has forgotten."""
    return f"{count(forgot.tokens, 'token')} of {forgot.total:,}"


def _ending(tally: Tally) -> str:
    """How many tokens there are, and why there are no more if the answer is incomplete."""
    reason = tally.finished.reason if tally.finished else "stop"
    tokens, read = count(len(tally.token_ids), "token"), tally.prefill
    if reason == "interrupted" and tally.unread:
        return "stopped while reading" + (
            f", {read.done:,} of {count(read.total, 'token')} done" if read else ""
        )
    endings = {"interrupted": f"stopped after {tokens}", "length": f"stopped at the limit of {tokens}"}
    endings["repetition"] = f"stopped after {tokens} because the answer repeats itself"
    return endings.get(reason, tokens)


def cut_short(tally: Tally) -> str:
    """That an answer was ended by a limit or a guard; nothing if it is whole, or if the user ended it."""
    return _ending(tally) if tally.finished and tally.finished.reason in UNATTENDED_REMEDIES else ""


def sparkline(values: Sequence[int], marks: Iterable[int], width: int) -> tuple[str, str]:
    """A line of bars, one per value, and a line with a ^ under each value whose index is in ``marks``.

    If there are more values than columns, neighbours share a column, which shows their mean.
    """
    columns = min(len(values), max(1, width))
    spans = [*pairwise(at * len(values) // columns for at in range(columns + 1))] if columns else []
    tallest, marked = max(values, default=0) or 1, set(marks)
    heights = [fmean(values[start:end]) / tallest for start, end in spans]
    bars = "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)
    return bars, "".join("^" if marked & {*range(start, end)} else " " for start, end in spans).rstrip()


class QuarterProgress:
    """Reports each quarter of some work once; work that is done at the first report has none."""

    def __init__(self) -> None:
        self._last = 0

    def reached(self, done: float, total: float) -> int:
        """The quarter that was just reached in percent, or 0."""
        quarter = int(4 * done / total) if total > 0 else 0
        new = quarter > self._last and (quarter < 4 or self._last > 0)
        self._last = quarter if new else self._last
        return 25 * quarter if new else 0


def fit_line(pieces: Iterable[str], width: int) -> str:
    """The first pieces that fit into ``width`` columns, separated by ``SEPARATOR``; at least the first one."""
    line = ""
    for piece in pieces:
        longer = f"{line}{SEPARATOR}{piece}" if line else piece
        if line and cell_len(longer) > width:
            break
        line = longer
    return line


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text, with an ellipsis for the rest."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def beginning(text: str, lines: int, limit: int) -> str:
    """At most so many lines, and characters, of a text; the number of further lines follows."""
    found = text.splitlines()
    more = [f"… and {count(len(found) - lines, 'more line')}"] if len(found) > lines else []
    return "\n".join([shorten("\n".join(found[:lines]), limit), *more])
