"""The statistics of an answer, for /stats: words, a table of the levels, and a chart of the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from triforce_chat.chat.events import Tally
from triforce_chat.engine.events import Rebuilt
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean
from triforce_chat.ui.tables import show_table
from triforce_chat.ui.terminal import Screen

LABEL_WIDTH = 10  # columns


def show_statistics(tally: Tally, screen: Screen) -> None:
    """Print the statistics of one answer, each once."""
    rows = []
    for name, level in formatting.levels_from_top(tally):
        counts = (level.accepted, level.proposed, level.tested, level.rounds)
        rows.append([clean(name), *(f"{n:,}" for n in counts), formatting.percent(level.acceptance)])
    pace = [*formatting.pace(tally), *formatting.first_token(tally)] if tally.finished else []
    screen.note(*pace, *formatting.prefill_summary(tally), *_rebuild_lines(tally.rebuilds))
    if rows:
        show_table(("level", "accepted", "proposed", "tested", "rounds", "acceptance"), rows, screen)
        screen.note(*round_chart(tally, screen))


def round_chart(tally: Tally, screen: Screen) -> list[str]:
    """The accepted tokens of each round of the target, and the rounds in which the cache was built.

    A plain screen gets words instead of bars.
    """
    accepted, rounds = tally.accepted, len(tally.accepted)
    if not accepted:
        return []
    built = sorted({min(at, rounds - 1) for at in tally.rebuilt_in})
    if screen.detail == "plain":
        line = f"accepted per round: {fmean(accepted):.1f} of {rounds:,} rounds, {min(accepted)} to {max(accepted)}"
        return [line, *([f"cache built in round: {', '.join(str(at + 1) for at in built)}"] if built else [])]
    bars, marks = formatting.sparkline(accepted, built, screen.notes.width - LABEL_WIDTH)
    head = f"accepted in each of {formatting.count(rounds, 'round')}, {min(accepted)} to {max(accepted)}"
    lines = [head, f"{'':<{LABEL_WIDTH}}{bars}"]
    return [*lines, f"{'built':<{LABEL_WIDTH}}{marks}"] if built else lines


def _rebuild_lines(rebuilds: Sequence[Rebuilt]) -> list[str]:
    """One line for each reason to build the retrieval cache."""
    last = {rebuilt.reason: rebuilt.at for rebuilt in rebuilds}
    counts = Counter(rebuilt.reason for rebuilt in rebuilds)
    return [
        f"retrieval cache built {formatting.times(counts[why])} ({formatting.REASONS[why]}), "
        f"{'the last time ' * (counts[why] > 1)}at token {at:,}"
        for why, at in last.items()
    ]
