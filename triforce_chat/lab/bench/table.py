"""The benchmark's figures for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from triforce_chat.lab.bench.row import Row

if TYPE_CHECKING:
    from triforce_chat.lab.bench.batch import Batched
    from triforce_chat.lab.bench.profile import Profile
    from triforce_chat.lab.bench.together import Together

COLUMNS = (
    "context",
    "contender",
    "T",
    "ms/token",
    "spread",
    "plain",
    "speed-up",
    "95 %",
    "tokens/round",
    "accepted",
    "fresh",
    "prefill tok/s",
    "peak GB",
)
TOGETHER_COLUMNS = (
    *("context", "contender", "T", "answers", "one, s", "all, s", "spread", "all/one"),
    *("ms/token", "tokens/round", "fresh"),
)
BATCH_COLUMNS = (
    *("batch", "contender", "T", "tokens", "s", "spread", "ms/token", "tokens/round", "fresh", "speed-up"),
    "all running",  # the speed-up until the first answer ended
)
TOP = "target"  # the level whose verifications are rounds
EQUAL = "equal"  # tokens of a peer's answers before the first that differs from ours


def table(rows: Sequence[Row]) -> Table:
    """One line per context and contender."""
    beside_peer = any(row.leading_equal is not None for row in rows)
    made = lined([*COLUMNS, *([EQUAL] if beside_peer else [])])
    for row in rows:
        low, high = row.spread_ms
        accepted = " ".join(f"{share:.2f}" for share in row.acceptance.values() if share is not None)
        below = [f"{made:.2f}" for level, made in row.tokens_per_verification.items() if level != TOP]
        made.add_row(
            f"{row.context:,}",
            " ".join([row.contender, *(f"{name}={value}" for name, value in row.varied.items())]),
            f"{row.temperature:g}",
            f"{row.ms_per_token:.1f}",
            f"{low:.1f}-{high:.1f}",
            "" if row.plain_ms_per_token is None else f"{row.plain_ms_per_token:.1f}",
            "" if row.speedup is None else f"{row.speedup:.2f}x",
            likely(row.speedup_interval),
            " ".join([f"{row.tokens_per_round:.2f}", *below]),
            accepted,
            "" if row.fresh is None else f"{row.fresh:.2f}",
            f"{row.prefill_tokens_per_s:.0f}",
            f"{row.peak_bytes / 1e9:.2f}",
            *([] if row.leading_equal is None else [f"{row.leading_equal}/{row.tokens}"]),
        )
    return made


def together_table(rows: Sequence[Together]) -> Table:
    """One line per text and contender for questions that were answered at once."""
    made = lined(TOGETHER_COLUMNS)
    for row in rows:
        low, high = row.spread_s
        made.add_row(
            *(f"{row.context:,}", row.contender, f"{row.temperature:g}", f"{row.sequences}"),
            *(f"{row.one_s:.2f}", f"{row.together_s:.2f}", f"{low:.2f}-{high:.2f}", f"{row.times_one:.2f}"),
            *(f"{row.ms_per_token:.1f}", f"{row.tokens_per_round:.2f}"),
            "" if row.fresh is None else f"{row.fresh:.2f}",
        )
    return made


def batch_table(rows: Sequence[Batched]) -> Table:
    """One line per batch and contender for different texts at once."""
    made = lined(BATCH_COLUMNS)
    for row in rows:
        low, high = row.spread_s
        made.add_row(
            *(f"{row.sequences} x {row.context:,}", row.contender, f"{row.temperature:g}", f"{row.tokens:,}"),
            *(f"{row.seconds:.2f}", f"{low:.2f}-{high:.2f}", f"{row.ms_per_token:.1f}"),
            f"{row.tokens_per_round:.2f}",
            "" if row.fresh is None else f"{row.fresh:.2f}",
            "" if row.speedup is None else f"{row.speedup:.2f}",
            "" if row.full_speedup is None else f"{row.full_speedup:.2f}",
        )
    return made


def likely(interval: tuple[float, float] | None) -> str:
    """The interval of a mean over several prompts."""
    return "" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}"


def lined(columns: Sequence[str]) -> Table:
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=True)
    return made


def profile_lines(profile: Profile) -> Iterator[str | Table]:
    """Where a round goes: milliseconds by level and by kind of work, beside what its bytes must take."""
    one = profile
    yield (
        f"\n{one.case} at {one.context:,} tokens, T={one.temperature:g}: {one.ms_per_round:.2f} ms a round of "
        f"{one.tokens_per_round:.2f} tokens ({one.ms_per_token:.2f} ms/token); milliseconds of it, {one.clock}:"
    )
    made = lined(("", *one.levels, "all"))
    for name in one.groups:
        cells = [one.ms.get(level, {}).get(name, 0.0) for level in one.levels]
        made.add_row(name, *(f"{cell:.2f}" if cell else "" for cell in cells), f"{sum(cells):.2f}")
    made.add_row("idle", *("" for _ in one.levels), f"{one.idle_ms:.2f}")
    made.add_row("forwards", *(_number(one.forwards.get(level)) for level in one.levels), "")
    floors = [one.floor_ms.get(level) for level in one.levels]
    made.add_row("byte floor", *(_number(floor) for floor in floors), f"{one.floor_total_ms:.2f}")
    yield made
    yield f"bytes at the {one.bandwidth / 1e9:,.0f} GB/s that a copy on the device reaches"
    yield (
        f"prefill: {one.prefill.tokens_per_s:,.0f} tokens/s, {one.prefill.share:.0%} of the "
        f"{one.prefill.matmul_flops / 1e12:,.3g} TFLOP/s that a matrix product reaches"
    )
    if one.overlap is not None:
        copies, compute, both = one.overlap.copies_ms, one.overlap.compute_ms, one.overlap.both_ms
        yield (
            f"host to device: {copies:.2f} ms of copies and {compute:.2f} ms of arithmetic in a round, "
            f"{both:.2f} ms of both at once"
        )


def _number(value: float | None) -> str:
    return "" if not value else f"{value:.2f}"
