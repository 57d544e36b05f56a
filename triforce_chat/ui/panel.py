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
from triforce_chat.ui.theme import BAR, BAR_BACK, BORDER, BORDER_ALERT

GAP = "   "
WIDE, NARROW = 110, 64  # columns: from WIDE on bars are long, below NARROW there are none
BORDER_WIDTH = 4  # columns
LABEL_WIDTH = 9  # columns


class EnginePanel:
    """State of one answer; ``title`` names the stack, ``limit`` is the context in tokens (0: unknown)."""

    def __init__(self, title: str, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.tally = Tally()
        self.stopping = self._measuring = False
        self._title, self._limit, self._clock = clean(title), limit, clock
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
        read = self.tally.prefill
        return not self.tally.token_ids and (read is None or read.done < read.total)

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
        title = f"{self._title} · stopping, Ctrl-C again leaves" if self.stopping else self._title
        known = self._limit and self.tally.prefill
        used = formatting.context_usage(formatting.context_used(self.tally), self._limit) if known else ""
        used = used if width >= NARROW else used.replace(" tokens", "")
        yield Panel(
            body,
            title=Text(title, "not dim bold") if title else None,
            subtitle=Text(f"context {used}", "not dim not bold") if used else None,
            title_align="left",
            subtitle_align="right",
            border_style=BORDER_ALERT if self.stopping else BORDER,
        )

    def _prefill_rows(self, width: int) -> RenderableType:
        read = self.tally.prefill or Prefilled(0, 0, 0, 0.0)
        short = _progress(read).removesuffix(" tokens").strip()
        top = _bar(read) if width >= NARROW else _row("reading", [Text(short)], width)
        return Group(top, _row("", [Text(piece) for piece in _prefill_pieces(read)], width))

    def _answer_rows(self, width: int) -> RenderableType:
        cells = 20 if width >= WIDE else 10 if width >= NARROW else 0
        bars = [
            _meter(name, level.acceptance, cells) for name, level in formatting.levels_from_top(self.tally)
        ]
        if self._measuring:
            return _row("", [Text(formatting.MEASURING)], width)
        pace = [*self.speed, f"{self.tally.tokens_per_round:.1f} tokens/round"]
        return Group(
            _row("accepted", bars or [Text("no speculation")], width),
            _row("pace", [Text(piece) for piece in (pace if self.tally.rounds else self.speed)], width),
            _row("cache", [Text(piece) for piece in self._rebuild_pieces()], width),
        )

    def _rebuild_pieces(self) -> list[str]:
        built = self.tally.rebuilds[-1:]
        if not built:
            return ["not built so far"]
        ago = max(0, formatting.context_used(self.tally) - built[0].at)
        last = f"last at {built[0].at:,}"
        return [
            f"built {len(self.tally.rebuilds)}×",
            last,
            f"{formatting.count(ago, 'token')} ago ({built[0].reason})",
        ]


def _bar(read: Prefilled) -> Table:
    top = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        top.add_column(ratio=ratio, no_wrap=True)
    bar = ProgressBar(read.total or None, read.done, style=BAR_BACK, complete_style=BAR, finished_style=BAR)
    top.add_row(Text("reading", "dim"), bar, _progress(read))
    return top


def _progress(read: Prefilled) -> str:
    percent = formatting.percent(read.done / read.total) if read.total else ""
    return f"{percent:>5}{GAP}{read.done:,} / {read.total:,} tokens" if percent else ""


def _prefill_pieces(read: Prefilled) -> list[str]:
    computed = read.done - read.cached
    pieces = [formatting.prefill_rate(read)] if computed > 0 and read.seconds > 0 else ["starting"]
    if computed > 0 and read.seconds > 0:
        pieces.append(f"{formatting.duration((read.total - read.done) * read.seconds / computed)} left")
    if read.cached:
        place = "disk" if read.recalled else "cache"
        pieces.append(f"{formatting.percent(read.cached / read.total)} from the {place}")
    return pieces


def _row(label: str, pieces: list[Text], width: int) -> Text:
    """A label and as many pieces as fit, closer together on a narrow terminal."""
    gap, room = GAP if width >= NARROW else GAP[1:], width - BORDER_WIDTH - LABEL_WIDTH
    row, taken = Text(no_wrap=True, overflow="ellipsis").append(f"{label:<{LABEL_WIDTH}}", "dim"), 0
    for piece in pieces:
        if taken and taken + len(gap) + piece.cell_len > room:
            break
        row.append(gap if taken else "").append_text(piece)
        taken += len(gap) * bool(taken) + piece.cell_len
    return row


def _meter(name: str, value: float | None, cells: int) -> Text:
    full = round((value or 0.0) * cells)
    meter = Text(f"{clean(name)} ")
    meter.append("━" * full, BAR).append("━" * (cells - full), BAR_BACK).append(" " if cells else "")
    return meter.append(formatting.percent(value), "bold")
