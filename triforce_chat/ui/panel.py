"""The panel below an answer: it folds the engine's events, and Rich draws it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Calibrated, Finished, Prefilled
from triforce_chat.engine.events import Text as TextEvent
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean
from triforce_chat.ui.panel_help import ACCEPTED, CACHE, DRAFTING, FORGOTTEN, ROUNDS, SPEED
from triforce_chat.ui.theme import BAR, BAR_BACK, BORDER, BORDER_ALERT

GAP = "   "
# columns: from WIDE on meters are long, below NARROW there are none and words are left out, below LEAST also the rounds
WIDE, NARROW, LEAST = 110, 74, 50
BORDER_WIDTH, FOOT_EDGES = 4, 6  # columns
LABEL_WIDTH, SHORT_LABEL_WIDTH = 18, 10  # columns; the short one below NARROW
MOST_BARS = 60  # rounds
BARS_ARE, MARKS_ARE = " drafts accepted", " cache built"
SHORT_LABELS = {ACCEPTED: "accepted", CACHE: "cache", ROUNDS: "per round"}
DRAFTERS = {
    "draft": "draft model",
    "retrieval": "retrieval cache",
    "int4": "4-bit copy",
    "streaming": "streaming cache",
}


class EnginePanel:
    """State of one answer.

    ``title`` names the stack, ``limit`` is the context and ``most`` the longest answer, in tokens (0: unknown).
    """

    def __init__(
        self, title: str, limit: int, clock: Callable[[], float] = time.monotonic, most: int = 0
    ) -> None:
        self.tally = Tally()
        self.stopping = self._measuring = False
        self._title, self._limit, self._clock, self._most = clean(title), limit, clock, most
        self._began = self._prefill_end = self._last_text = clock()
        self._first: float | None = None

    def add(self, event: ChatEvent) -> None:
        """Fold one event."""
        self.tally.add(event)
        now = self._clock()
        if isinstance(event, Prefilled):
            self._prefill_end = self._last_text = now
        elif isinstance(event, Calibrated):
            self._prefill_end = self._last_text = now
            self._measuring = event.done < event.total
        elif isinstance(event, TextEvent):
            self._last_text = now
            self._first = now if self._first is None else self._first

    def interrupted(self) -> None:
        """End the tally of an answer that the user stopped; the engine sends no event for that."""
        if self.tally.finished is None:
            self.tally.add(self._stopped())

    def _stopped(self) -> Finished:
        read = self.tally.prefill or Prefilled(0, 0, 0, 0.0)
        first = (self._last_text if self._first is None else self._first) - self._began
        generated = len(self.tally.token_ids)
        spent = self._decode_seconds
        return Finished("interrupted", read.total, read.cached, generated, read.seconds, first, spent)

    @property
    def _decode_seconds(self) -> float:
        done = self.tally.finished
        return done.decode_s if done else self._last_text - self._prefill_end

    @property
    def reading(self) -> bool:
        """True until the prompt is in the cache."""
        return self.tally.unread

    @property
    def speed(self) -> list[str]:
        """Present tokens per second and milliseconds per token; empty before the first token."""
        generated, spent = len(self.tally.token_ids), self._decode_seconds
        if not generated or spent <= 0:
            return []
        return [formatting.token_rate(generated, spent), f"{1000 * spent / generated:.1f} ms/token"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        body = self._prefill_rows(width) if self.reading else self._answer_rows(width)
        title = f"{self._title} · stopping, Ctrl-C again exits" if self.stopping else self._title
        foot = self._foot(width - FOOT_EDGES)
        yield Panel(
            body,
            title=Text(title, "not dim bold") if title else None,
            subtitle=Text(foot, "not dim not bold") if foot else None,
            title_align="left",
            subtitle_align="right",
            border_style=BORDER_ALERT if self.stopping else BORDER,
        )

    def _foot(self, room: int) -> str:
        """Tokens of the answer and of the context, of the most that they can have, in the longest words that fit."""
        known, made = self._limit and self.tally.prefill, len(self.tally.token_ids)
        used = formatting.context_used(self.tally)
        context = f"context {formatting.context_usage(used, self._limit)}" if known else ""
        short = f"context {formatting.percent(used / self._limit)}" if known else ""
        most = formatting.count(self._most, "token")
        forms = [(f"{made:,} of at most {most}", context)]
        forms += [(f"{made:,} of {most}", each) for each in (context.replace(" tokens", ""), short)]
        forms = forms if self._most and made else [("", context), ("", context.replace(" tokens", ""))]
        lines = [formatting.SEPARATOR.join(filter(None, form)) for form in forms]
        return next((line for line in lines if len(line) <= room), lines[-1])

    def _prefill_rows(self, width: int) -> RenderableType:
        read = self.tally.prefill or Prefilled(0, 0, 0, 0.0)
        short = _progress(read).removesuffix(" tokens").strip()
        top = _bar(read) if width >= NARROW else _row("reading", [Text(short)], width)
        pieces = _row("", [Text(piece) for piece in _prefill_pieces(read)], width)
        return Group(top, pieces, *self._forgotten_rows(width))

    def _answer_rows(self, width: int) -> RenderableType:
        if self._measuring:
            return _row("", [Text(formatting.MEASURING)], width)
        rows = [
            (DRAFTING, [Text(self._drafting)]),
            (ACCEPTED, self._meters(width)),
            (SPEED, [Text(piece) for piece in self._pace_pieces(width)]),
            *self._cache_rows(width),
        ]
        rows_shown = [_row(label, pieces, width) for label, pieces in rows]
        return Group(*rows_shown, *self._forgotten_rows(width), *self._history_rows(width))

    def _forgotten_rows(self, width: int) -> list[Text]:
        """What an endless conversation has forgotten, if anything."""
        forgot = self.tally.forgot
        return [_row(FORGOTTEN, [Text(formatting.forgotten(forgot))], width)] if forgot else []

    @property
    def _drafting(self) -> str:
        """Who drafts now, from the first drafter up to the one whose drafts the target verifies."""
        if not self.tally.latest:
            return "none yet"
        chain, level = [], self.tally.top
        while latest := self.tally.latest.get(level):
            if not latest.drafter:
                break
            chain.append(DRAFTERS.get(latest.drafter, clean(latest.drafter)))
            level = latest.drafter
        return " → ".join(reversed(chain)) if chain else "none: plain decoding"

    def _meters(self, width: int) -> list[Text]:
        cells = 20 if width >= WIDE else 10 if width >= NARROW else 0
        tested = [(name, level) for name, level in formatting.levels_from_top(self.tally) if level.tested]
        return [_meter(name, level.acceptance, cells) for name, level in tested] or [Text("no drafts yet")]

    def _pace_pieces(self, width: int) -> list[str]:
        faster = (
            self._speedup if width >= NARROW else [each.replace(" decoding", "") for each in self._speedup]
        )
        return [*self.speed[:1], *faster, *self.speed[1:]]

    @property
    def _speedup(self) -> list[str]:
        """How many times faster than plain decoding, and whether the time of that was measured."""
        top, made = self.tally.latest.get(self.tally.top), len(self.tally.token_ids)
        spent = self._decode_seconds
        if top is None or not self.tally.plain_ms or not made or spent <= 0:
            return []
        how = "measured" if top.plain_measured else "expected"
        # Each token as plain decoding was when it came: a machine that has become slower makes no answer quicker.
        plain_ms = self.tally.plain_ms / self.tally.plain_tokens
        return [f"{plain_ms * made / (1000 * spent):.1f}x plain decoding ({how})"]

    def _cache_rows(self, width: int) -> list[tuple[str, list[Text]]]:
        """How often the cache was built, and why the last time: in a row of its own where both fit in none."""
        built, why = self._last_built()
        if len(built) + len(why) <= width - BORDER_WIDTH - _label_width(width):
            return [(CACHE, [Text(built + why)])]
        return [(CACHE, [Text(built)]), ("", [Text(why.strip())])]

    def _last_built(self) -> tuple[str, str]:
        built = self.tally.rebuilds
        if not built:
            return "not needed yet", ""
        ago = formatting.count(max(0, formatting.context_used(self.tally) - built[-1].at), "token")
        last = "last " * (len(built) > 1)
        why = "" if built[-1].reason == "first" else f" because {formatting.REASONS[built[-1].reason]}"
        return f"built {formatting.times(len(built))}, {last}{ago} ago", why

    def _history_rows(self, width: int) -> list[Text]:
        """Tokens per round, accepted ones of the latest rounds, and under them the rounds that built the cache."""
        if width < LEAST:
            return []
        mean = f"{self.tally.tokens_per_round:.1f}{GAP}" if self.tally.rounds else ""
        room = width - BORDER_WIDTH - _label_width(width) - len(mean) - max(len(BARS_ARE), len(MARKS_ARE))
        accepted = self.tally.accepted[-min(MOST_BARS, room) :]
        first = len(self.tally.accepted) - len(accepted)
        built = {min(at - first, len(accepted) - 1) for at in self.tally.rebuilt_in if at >= first}
        bars, marks = formatting.sparkline(accepted, built, MOST_BARS)
        shown = Text.assemble(mean, (bars, BAR), (BARS_ARE, "dim")) if bars else Text(mean)
        under = Text(f"{'':<{len(mean)}}{marks}{MARKS_ARE}" if marks else "", "dim")
        return [_row(ROUNDS, [shown], width), _row("", [under], width)]


def _bar(read: Prefilled) -> Table:
    top = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        top.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(read.total or None, read.done, style=BAR_BACK, complete_style=BAR, finished_style=BAR)
    top.add_row(Text(f"{'reading':<{LABEL_WIDTH - len(GAP) + 1}}", "dim"), bar, _progress(read))
    return top


def _progress(read: Prefilled) -> str:
    percent = formatting.percent(read.done / read.total) if read.total else ""
    return f"{percent:>5}{GAP}{read.done:,} / {read.total:,} tokens" if percent else ""


def _prefill_pieces(read: Prefilled) -> list[str]:
    computed = read.done - read.cached
    pieces = (
        [formatting.prefill_rate(read)] if computed > 0 and read.seconds > 0 else ["reading the first piece"]
    )
    if computed > 0 and read.seconds > 0:
        pieces.append(f"{formatting.duration((read.total - read.done) * read.seconds / computed)} left")
    if read.cached:
        place = "disk" if read.recalled else "cache"
        pieces.append(f"{formatting.percent(read.cached / read.total)} from the {place}")
    return pieces


def _row(label: str, pieces: list[Text], width: int) -> Text:
    """A label and as many pieces as fit, closer together and with a shorter label on a narrow terminal."""
    wide, taken_by_label = width >= NARROW, _label_width(width)
    gap, label = (GAP, label) if wide else (GAP[1:], SHORT_LABELS.get(label, label))
    room = width - BORDER_WIDTH - taken_by_label
    row, taken = Text(no_wrap=True, overflow="ellipsis").append(f"{label:<{taken_by_label}}", "dim"), 0
    for piece in pieces:
        between = gap if taken else ""
        if taken and taken + len(between) + piece.cell_len > room:
            break
        row.append(between).append_text(piece)
        taken += len(between) + piece.cell_len
    return row


def _label_width(width: int) -> int:
    return LABEL_WIDTH if width >= NARROW else SHORT_LABEL_WIDTH


def _meter(name: str, value: float | None, cells: int) -> Text:
    full = round((value or 0.0) * cells)
    meter = Text(f"{clean(name)} ")
    meter.append("━" * full, BAR).append("━" * (cells - full), BAR_BACK).append(" " if cells else "")
    return meter.append(formatting.percent(value), "bold")
