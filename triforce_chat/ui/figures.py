"""The numbers of an answer, in the words that the panel, the summary line, /stats and /compare share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from rich.cells import cell_len

from triforce_chat.engine.events import LevelTally, Prefilled, Tally

SEPARATOR = " · "
BARS = "▁▂▃▄▅▆▇█"


def share(part: float | None) -> str:
    """A fraction as a percentage; "-" where there is none."""
    return "-" if part is None else f"{100 * part:.0f} %"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def moment(seconds: float) -> str:
    """Seconds since the epoch as the date and the time of day here."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def rate(tokens: float, seconds: float) -> str:
    """Tokens a second, without false precision."""
    speed = tokens / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f} tokens/s" if speed >= 100 else f"{speed:.1f} tokens/s"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def levels(tally: Tally) -> list[tuple[str, LevelTally]]:
    """The levels from the top down; a copy, because the panel is drawn while events arrive."""
    return sorted(tally.levels.items(), key=lambda item: item[0] != tally.top)


def acceptance(tally: Tally) -> list[str]:
    return [f"{name} {share(level.acceptance)}" for name, level in levels(tally)]


def context_used(tally: Tally) -> int:
    """Tokens in the context: the prompt and what was answered so far."""
    return (tally.prefill.total if tally.prefill else 0) + len(tally.token_ids)


def context(used: int, limit: int) -> str:
    return f"{used:,} / {limit:,} tokens ({share(used / limit if limit else None)})"


def computed(prefill: Prefilled) -> str:
    """Tokens a second of the part that was not in the cache."""
    return rate(prefill.done - prefill.cached, prefill.seconds)


def reading(tally: Tally) -> list[str]:
    """What the prefill cost."""
    prefill = tally.prefill
    if prefill is None:
        return []
    cached = share(prefill.cached / prefill.total if prefill.total else None)
    place = "disk" if prefill.recalled else "cache"
    took = f"read {count(prefill.done, 'token')} in {duration(prefill.seconds)}"
    rates = [computed(prefill)] if prefill.done > prefill.cached else []
    return [took, *rates, f"{cached} from the {place}"]


def summary(tally: Tally) -> list[str]:
    """The answer in a few pieces, the most telling ones first."""
    done = tally.finished
    if done is None:
        return reading(tally)
    pieces = [_ending(tally)]
    if tally.ms_per_token:
        pieces += [f"{tally.ms_per_token:.1f} ms/token"]
    if tally.rounds:
        pieces += [f"{tally.tokens_per_round:.1f}/round", *acceptance(tally)]
    pieces += [f"first token {duration(done.first_token_s)}"] if tally.token_ids else []
    pieces += [f"cache built {len(tally.rebuilds)}×"] if tally.rebuilds else []
    return pieces


def _ending(tally: Tally) -> str:
    reason = tally.finished.reason if tally.finished else "stop"
    tokens, read = count(len(tally.token_ids), "token"), tally.prefill
    if reason == "interrupted" and read and read.done < read.total:
        return f"stopped while reading, {read.done:,} of {count(read.total, 'token')} done"
    endings = {"interrupted": f"stopped after {tokens}", "length": f"cut at {tokens}, the length limit"}
    return endings.get(reason, tokens)


def sparkline(values: Sequence[int], marks: Iterable[int], width: int) -> tuple[str, str]:
    """A bar for each value, and below it a ^ under each marked one (counted from 0).

    Where there are more values than columns, neighbours share one: it shows their mean.
    """
    columns = min(len(values), max(1, width))
    spans = [*pairwise(at * len(values) // columns for at in range(columns + 1))] if columns else []
    tallest, marked = max(values, default=0) or 1, set(marks)
    heights = [fmean(values[start:end]) / tallest for start, end in spans]
    bars = "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)
    return bars, "".join("^" if marked & {*range(start, end)} else " " for start, end in spans).rstrip()


class Quarters:
    """Tells the quarters of some work as they are reached; work that was done in one go had none."""

    def __init__(self) -> None:
        self._last = 0

    def reached(self, done: float, total: float) -> int:
        """A new one in percent, else 0."""
        quarter = int(4 * done / total) if total > 0 else 0
        new = quarter > self._last and (quarter < 4 or self._last > 0)
        self._last = quarter if new else self._last
        return 25 * quarter if new else 0


def fit(pieces: Iterable[str], width: int) -> str:
    """As many of the pieces as one line holds; the first one always."""
    line = ""
    for piece in pieces:
        longer = f"{line}{SEPARATOR}{piece}" if line else piece
        if line and cell_len(longer) > width:
            break
        line = longer
    return line


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters of a text; an ellipsis stands for the rest."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
