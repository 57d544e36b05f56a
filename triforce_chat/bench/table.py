"""The benchmark's figures for a reader."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from triforce_chat.bench.measure import Row

COLUMNS = (
    "context",
    "contender",
    "T",
    "ms/token",
    "spread",
    "speed-up",
    "tokens/round",
    "accepted",
    "prefill tok/s",
    "peak GB",
)


def table(rows: Sequence[Row]) -> Table:
    """One line per context and contender."""
    made = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        made.add_column(column, no_wrap=True)
    for row in rows:
        low, high = row.spread_ms
        accepted = " ".join(f"{share:.2f}" for share in row.acceptance.values() if share is not None)
        made.add_row(
            f"{row.context:,}",
            " ".join([row.contender, *(f"{name}={value}" for name, value in row.varied.items())]),
            f"{row.temperature:g}",
            f"{row.ms_per_token:.1f}",
            f"{low:.1f}-{high:.1f}",
            _speedup(row),
            f"{row.tokens_per_round:.2f}",
            accepted,
            f"{row.prefill_tokens_per_s:.0f}",
            f"{row.peak_bytes / 1e9:.2f}",
        )
    return made


def _speedup(row: Row) -> str:
    """With the standard error of its mean where there were several prompts."""
    if row.speedup is None:
        return ""
    return f"{row.speedup:.2f}x" + (f" ±{row.speedup_error:.2f}" if row.speedup_error is not None else "")
