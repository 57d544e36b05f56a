"""Counts the documents whose chapters and reading order are read as they are, as a record in JSON.

    python benchmarks/structure.py BOOKS > benchmarks/structure.json

BOOKS is what ``make_books.py`` leaves: documents, each with FILE.json, its chapters and paragraphs. Chapters are right
if they are as many, in the same order and with the same titles, letters and digits compared; slides are chapters, and
the first two have the title. The order is right if of the beginnings of sentences that stand nowhere else 98 % are
found, and each of them after the one before: a page's number may stand in the midst of one.

BOOKS may also be what ``fetch_documents.py`` leaves, whose FILE.json knows less: then chapters are right if they are as
many and the first and the last have the title, and the order if all phrases are found, each behind the one before.
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


def titles_right(found: list[str], wanted: list[str]) -> bool:
    return len(found) == len(wanted) and all(title in each for each, title in zip(found, wanted, strict=True))


def whole(document: Document, known: dict[str, Any]) -> dict[str, Any]:
    """What is right in a document of which all chapters and all sentences are known."""
    text, marks = letters(document.text), marks_of(known["paragraphs"])
    marks = [each for each in marks if text.count(each) <= 1]  # a preface may repeat a sentence
    places = [at for at in map(text.find, marks) if at >= 0]
    found = [letters(chapter.title) for chapter in chapters_of(document)]
    return {
        "wanted": len(known["chapters"]),
        "found": len(found),
        "chapters": titles_right(found, [letters(title) for title in known["chapters"]]),
        "sentences": len(marks),
        "missing": len(marks) - len(places),
        "order": len(places) >= FOUND * len(marks) and places == sorted(places),
    }


def outline(document: Document, known: dict[str, Any]) -> dict[str, Any]:
    """What is right in a document of which the number of chapters, two titles and some phrases are known."""
    text, phrases = letters(document.text), [letters(each) for each in known["phrases"]]
    left_out = {letters(title) for title in known.get("also", ())}
    titles = [letters(chapter.title) for chapter in chapters_of(document)]
    found = [title for title in titles if title not in left_out]
    ends = [letters(known["first"]), letters(known["last"])] if found else []
    return {
        "wanted": known["chapters"],
        "found": len(found),
        "chapters": len(found) == known["chapters"] and titles_right(found[:1] + found[-1:], ends),
        "sentences": len(phrases),
        "missing": sum(each not in text for each in phrases),
        "order": re.search(".*".join(map(re.escape, phrases)), text) is not None,
    }


def row(path: Path) -> dict[str, Any]:
    """What is right in one document."""
    known = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))
    told = (outline if "phrases" in known else whole)(read(str(path)), known)
    return {"file": path.name, "format": path.suffix[1:], **told}


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
