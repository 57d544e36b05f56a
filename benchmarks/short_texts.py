"""Writes texts of two more kinds beside novels: conversations and reports, both invented.

    python benchmarks/short_texts.py FOLDER

``chat.txt`` holds short questions with their answers, ``reports.txt`` reports of many facts on one subject each. Both
are the same at every call.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from triforce_chat.lab.tasks.reports import Report, reports

COUNT = 12  # subjects: more than 4,096 tokens of each kind
CHAT_SEED, REPORT_SEED = 1, 2


def said(report: Report) -> Iterator[str]:
    """A conversation about a report that the reader does not see."""
    for fact in report.stated:
        yield f"User: {fact.question}\n\nAssistant: {fact.reply}"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    talks = [turn for each in reports(random.Random(CHAT_SEED), COUNT) for turn in said(each)]
    written = [text for each in reports(random.Random(REPORT_SEED), COUNT) for text in each.paragraphs]
    for name, parts in (("chat", talks), ("reports", written)):
        (folder / f"{name}.txt").write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the two files go")
    main(parser.parse_args().folder)
