"""From measured throughput to a whole archive: GPU hours, memory, disk and network for so many books.

    python benchmarks/capacity.py --books 10000 --questions 8 --answer 128

Speeds are read from the records beside this file; everything else is an argument. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

RECORDS = Path(__file__).parent
BOOK = 124_928  # tokens: the context at which the records measured
BYTES_PER_TOKEN = 4.4  # of English text
LINE = 2_000  # bytes of an answer's line beside its tokens: sources, usage, timing, speculation
LINE_PER_TOKEN = 12  # bytes: text, and the token's id
LINE_TOKENS = 600  # of a prompt behind the book: the question, and the passages that are quoted before it
HOUR, DAY = 3600.0, 86_400.0  # seconds


@dataclass(frozen=True)
class Model:
    """A model of which reading and answering were measured."""

    name: str
    record: str
    kv_bytes: int  # per token: 2 x layers x KV heads x head size x 2 bytes

    def row(self) -> dict[str, float]:
        rows = json.loads((RECORDS / f"{self.record}.json").read_text("utf-8"))["rows"]
        (found,) = (
            row
            for row in rows
            if (row["contender"], row["context"], row["temperature"]) == ("auto", BOOK, 0.6)
        )
        return dict(found)


MODELS = (
    Model("`medium`", "h200-medium", 2 * 24 * 2 * 64 * 2),
    Model("`large`", "h200-large", 2 * 28 * 2 * 128 * 2),
    Model("Llama-3.1-8B's shape", "h200-large-8b", 2 * 32 * 8 * 128 * 2),
    Model("Llama-2-7B's shape", "h200-large-7b", 2 * 32 * 32 * 128 * 2),
)


@dataclass(frozen=True)
class Archive:
    """What is asked of how much."""

    books: int
    questions: int  # about each book
    answer: int  # tokens
    days: float  # until all must be answered


@dataclass(frozen=True)
class Cost:
    """What an archive takes with one model."""

    seconds: float  # of one GPU, for one book
    reading: float  # share of these that reading the book takes
    gpu_hours: float
    gpus: float  # for the archive's days
    memory: float  # bytes of a GPU
    output: float  # bytes of all answers
    text: float  # bytes of text that are read
    kept: float  # bytes of keys and values, if all were kept


def cost(model: Model, archive: Archive) -> Cost:
    """A book is read once; each question is read and answered behind it, which is what ``batch`` does."""
    row = model.row()
    reading = BOOK / row["prefill_tokens_per_s"]
    # A question behind a full book attends to all of it, so it is read at the slower rate of a book's last tokens,
    # which is half of the mean where attention dominates.
    asking = 2 * LINE_TOKENS / row["prefill_tokens_per_s"]
    answering = archive.answer * row["ms_per_token"] / 1000
    seconds = reading + archive.questions * (asking + answering)
    lines = archive.books * archive.questions
    return Cost(
        seconds,
        reading / seconds,
        archive.books * seconds / HOUR,
        archive.books * seconds / (archive.days * DAY),
        row["prefill_peak_bytes"],
        lines * (LINE + archive.answer * LINE_PER_TOKEN),
        archive.books * BOOK * BYTES_PER_TOKEN,
        archive.books * BOOK * model.kv_bytes,
    )


def size(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} PB"


def table(archive: Archive) -> str:
    """The costs of an archive with each model, as Markdown."""
    header = ("model", "GPU s/book", "of these reading", "GPU hours", f"GPUs for {archive.days:g} days")
    names = (*header, "memory of a GPU", "text in", "answers out", "KV, if kept")
    rows = [names, ("---",) * len(names)]
    for model in MODELS:
        made = cost(model, archive)
        figures = (
            f"{made.seconds:.1f}",
            f"{made.reading:.0%}",
            f"{made.gpu_hours:,.0f}",
            f"{made.gpus:,.1f}",
        )
        sizes = map(size, (made.memory, made.text, made.output, made.kept))
        rows.append((model.name, *figures, *sizes))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=8, help="about each book")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--days", type=float, default=7.0, help="until all are answered")
    given = parser.parse_args()
    print(table(Archive(given.books, given.questions, given.answer, given.days)), end="")


if __name__ == "__main__":
    main()
