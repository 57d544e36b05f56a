"""Counts the documents whose chapters and reading order are read as they are, as a record in JSON.

    python benchmarks/structure.py BOOKS > benchmarks/structure.json

BOOKS is what ``make_books.py`` leaves: documents, each with FILE.json, its chapters and paragraphs. Chapters are right
if they are as many, in the same order and with the same titles, letters and digits compared; slides are chapters, and
the first two have the title. The order is right if of the beginnings of sentences that stand nowhere else 98 % are
found, and each of them after the one before: a page's number may stand in the midst of one.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

from triforce_chat.documents import Document, read
from triforce_chat.documents.chapters import chapters_of

MARK = 24  # letters and digits of a sentence that are looked for
FOUND = 0.98  # of the sentences


def letters(text: str) -> str:
    """What of a text does not depend on how it is set."""
    return "".join(re.findall(r"[^\W_]", unicodedata.normalize("NFKC", text).casefold()))


def marks_of(paragraphs: list[str]) -> list[str]:
    """The beginnings of all sentences that are long enough and stand once in the text."""
    sentences = [each for text in paragraphs for each in re.split(r"(?<=[.!?;])\s+", text)]
    whole = letters(" ".join(paragraphs))
    marks = [letters(each)[:MARK] for each in sentences]
    return [each for each in marks if len(each) == MARK and whole.count(each) == 1]


def chapters_right(document: Document, titles: list[str]) -> bool:
    found = [letters(chapter.title) for chapter in chapters_of(document)]
    wanted = [letters(title) for title in titles]
    return len(found) == len(wanted) and all(title in each for each, title in zip(found, wanted, strict=True))


def row(path: Path) -> dict[str, Any]:
    """What is right in one document."""
    known = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))
    document = read(str(path))
    text, marks = letters(document.text), marks_of(known["paragraphs"])
    marks = [each for each in marks if text.count(each) <= 1]  # a preface may repeat a sentence
    places = [at for at in map(text.find, marks) if at >= 0]
    return {
        "file": path.name,
        "format": path.suffix[1:],
        "wanted": len(known["chapters"]),
        "found": len(chapters_of(document)),
        "chapters": chapters_right(document, known["chapters"]),
        "sentences": len(marks),
        "missing": len(marks) - len(places),
        "order": len(places) >= FOUND * len(marks) and places == sorted(places),
    }


def main(folder: Path) -> None:
    from triforce_chat.lab.machine import machine

    paths = [path for path in sorted(folder.iterdir()) if path.suffix != ".json"]
    rows = [row(path) for path in paths]
    record = {
        "schema": 1,
        "machine": machine(),
        "command": f"python benchmarks/structure.py {folder.name}",
        "chapters": sum(each["chapters"] for each in rows),
        "order": sum(each["order"] for each in rows),
        "rows": rows,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
