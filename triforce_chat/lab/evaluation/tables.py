"""The figures of an evaluation for a reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from triforce_chat.lab.evaluation.acceptance import DIMENSIONS, MEASURES, Row
from triforce_chat.lab.evaluation.answers import FactAnswer, ShortAnswer, scores
from triforce_chat.lab.evaluation.eviction import Streamed
from triforce_chat.lab.evaluation.logits import Difference
from triforce_chat.lab.evaluation.perplexity import Band, Window
from triforce_chat.lab.evaluation.sparsity import summary


def table(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> Table:
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=True)
    for line in lines:
        made.add_row(*map(escape, line))
    return made


def band_table(bands: Sequence[Band]) -> Table:
    """Perplexity by position, with the reference's where it was measured."""
    lines = (
        (
            f"{each.start:,}-{each.end:,}",
            f"{each.tokens:,}",
            f"{each.perplexity:.2f}",
            f"{each.reference:.2f}" if each.reference else "",
            f"{each.ratio:.3f}" if each.ratio else "",
        )
        for each in bands
    )
    return table(("positions", "tokens", "perplexity", "reference", "ratio"), lines)


def window_table(windows: Sequence[Window]) -> Table:
    """The farthest band with a short memory."""
    lines = (
        (
            f"{each.least:,}-{each.most:,}",
            f"{each.tokens:,}",
            f"{each.perplexity:.2f}",
            f"{each.ratio:.3f}",
        )
        for each in windows
    )
    return table(("context", "tokens", "perplexity", "full / short"), lines)


def eviction_table(streams: Sequence[Streamed]) -> Table:
    """Perplexity by rule and band of positions, and the time of a token."""
    bands = {part.start: f"{part.start:,}-{part.end:,}" for each in streams for part in each.parts}
    lines = []
    for each in streams:
        found = {part.start: f"{part.perplexity:.2f}" for part in each.parts}
        cells = (found.get(start, "") for start in sorted(bands))
        lines.append((each.rule, *cells, f"{each.perplexity:.2f}", f"{each.ms_per_token:.1f}"))
    columns = ("perplexity", *(bands[start] for start in sorted(bands)), "all", "ms/token")
    return table(columns, lines)


def difference_table(found: Difference) -> Table:
    header = ("positions", "largest", "median of the largest", "largest logit", "same best", "KL, nats")
    line = (
        f"{found.positions:,}",
        f"{found.largest:.2g}",
        f"{found.median:.2g}",
        f"{found.scale:.1f}",
        f"{100 * found.same_best:.2f} %",
        f"{found.divergence:.2g}",
    )
    return table(header, [line])


def acceptance_table(rows: Sequence[Row]) -> Table:
    """One line per group; a measure without a value (no draft, nothing proposed) stays empty."""
    keys = [name for name in DIMENSIONS if name in rows[0].group]
    lines = []
    for row in rows:
        means = [row.means[name] for name in MEASURES]
        positions = max(each.positions for each in means if each)
        group = (shown(row.group[key]) for key in keys)
        lines.append((*group, *(str(each) if each else "" for each in means), f"{positions:,}"))
    return table((*keys, *(name.replace("_", " ") for name in MEASURES), "positions"), lines)


def layer_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The attention recovered in each layer, one table for each context and way to select, a column per budget."""
    every = [*rows, *({**row, "layer": "mean", "recovered": row["mean"]} for row in summary(rows))]
    return [
        share_table(f"{context:,} tokens, {policy}: layer", "layer", "budget", group)
        for (context, policy), group in grouped(every, "context", "policy")
    ]


def decay_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The attention recovered some tokens after a selection, one table for each context and budget."""
    return [
        share_table(f"{context:,} tokens, budget {budget:,}: tokens later", "after", "policy", group)
        for (context, budget), group in grouped(rows, "context", "budget")
    ]


def share_table(title: str, down: str, across: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Shares by two dimensions of the rows."""
    columns = list(dict.fromkeys(row[across] for row in rows))
    lines = [
        (shown(key), *(f"{row['recovered']:.1%}" for row in line)) for (key,), line in grouped(rows, down)
    ]
    return table((title, *map(shown, columns)), lines)


def grouped(
    rows: Sequence[Mapping[str, Any]], *names: str
) -> Iterable[tuple[tuple[Any, ...], list[Mapping[str, Any]]]]:
    """The rows that agree in these dimensions, in the order of their first ones."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups.items()


def fact_tables(found: Sequence[FactAnswer]) -> list[Table]:
    """Right answers by depth and by kind, a column for each context; absent facts are a kind of their own."""
    contexts = list(dict.fromkeys(each.context for each in found))
    columns = [shown(context) for context in contexts]
    by_depth = scores(found, lambda each: (each.depth, each.context))
    by_kind = scores(found, lambda each: (each.kind, each.context))
    depths = dict.fromkeys(each.depth for each in found if each.depth is not None)
    kinds = dict.fromkeys(each.kind for each in found)
    return [
        table(
            ("depth", *columns),
            (
                (f"{depth:.0%}", *(str(by_depth.get((depth, each), "")) for each in contexts))
                for depth in depths
            ),
        ),
        table(
            ("kind", *columns),
            ((kind, *(str(by_kind.get((kind, each), "")) for each in contexts)) for kind in kinds),
        ),
    ]


def comprehension_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Right answers by context and number of passages, and how varied the answers are."""
    groups = ("one", "two", "absent")
    lines = []
    for row in rows:
        right, asked = row["right"], row["asked"]
        share = sum(right.values()) / max(1, sum(asked.values()))
        lines.append(
            (
                f"{row['context']:,}" if row["context"] else "without the book",
                f"{sum(right.values())}/{sum(asked.values())}",
                f"{share:.1%}",
                *(f"{right[name]}/{asked[name]}" for name in groups),
                str(row["denied"]),
                f"{row['repeated_grams']:.1%}",
                f"{row['opening_share']:.1%} {row['opening']!r}",
            )
        )
    columns = ("context", "right", "share", "one passage", "two passages", "not in the text", "denied")
    return table((*columns, "repeated 4-grams", "commonest opening"), lines)


def reply_table(found: Sequence[ShortAnswer]) -> Table:
    """Questions that not every model answers rightly, with what was said."""
    failed = {each.question for each in found if not each.right}
    lines = (
        (each.question, each.model, "right" if each.right else "wrong", " ".join(each.said.split())[:80])
        for each in sorted(found, key=lambda each: each.question)
        if each.question in failed
    )
    return table(("question", "model", "", "said"), lines)


def shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
