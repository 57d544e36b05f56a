"""Compares the text that this program reads from PDF files with that of Poppler's pdftotext, as a record in JSON.

    python benchmarks/pdf_text.py FOLDER... > benchmarks/pdf-text.json

For each file: the words that both have (twice their number by the number of all), and of the words that stand once in
either text the share that is in the same order. Ligatures and hyphens at line ends do not count as differences. Where
the file's true text stands beside it (FILE.txt, as ``make_pdfs.py`` leaves it), both readers are compared with that,
too. Files that one of the two cannot read, or in whose text pdftotext has characters without a meaning, are named and
left out.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triforce_chat.documents import read
from triforce_chat.documents.readable import doubt
from triforce_chat.errors import DocumentError

LIGATURES = re.compile("[\ufb00-\ufb06]")
LINE_HYPHEN = re.compile(r"(?<=[^\W\d_])[-‐\u00ad]\s*\n\s*(?=[^\W\d_])")
DOUBTED = 0.01  # of the characters
MEASURES = ("words", "order", "true_words", "true_order", "poppler_true_words", "poppler_true_order")


def words(text: str) -> list[str]:
    plain = LINE_HYPHEN.sub("", unicodedata.normalize("NFKC", text)).replace("-", "")
    return re.findall(r"\w+", plain.lower())


def overlap(ours: list[str], theirs: list[str]) -> float:
    shared = Counter(ours) & Counter(theirs)
    return 2 * shared.total() / (len(ours) + len(theirs))


def order(ours: list[str], theirs: list[str]) -> float:
    """The longest common sequence of the words that stand once in either text, as a share of them."""
    counts, own = Counter(theirs), Counter(ours)
    places = {word: at for at, word in enumerate(theirs) if counts[word] == 1}
    shared = [places[word] for word in ours if own[word] == 1 and word in places]
    ends: list[int] = []  # the smallest end of a rising sequence of each length
    for at in shared:
        place = bisect_left(ends, at)
        ends[place : place + 1] = [at]
    return len(ends) / len(shared) if shared else 1.0


def by_poppler(path: Path) -> str:
    done = subprocess.run(["pdftotext", "-enc", "UTF-8", str(path), "-"], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace")


def compared(path: Path) -> dict[str, Any]:
    """A row of the record, which says why if the file is left out."""
    row: dict[str, Any] = {"file": path.name, "program": program(path)}
    theirs = by_poppler(path)
    try:
        document = read(str(path))
    except DocumentError as error:
        return {**row, "left_out": str(error).partition(": ")[2]}
    row |= {"warning": document.warning, "ligatures": len(LIGATURES.findall(document.text))}
    expected, found = words(theirs), words(document.text)
    if doubt(theirs.replace("\f", "")) > DOUBTED:
        return {**row, "left_out": f"pdftotext cannot decode it; {document.warning}"}
    if not expected:
        return {**row, "left_out": "pdftotext finds no word"}
    row |= {"words": overlap(found, expected), "order": order(found, expected)}
    beside = path.with_suffix(".txt")
    return {**row, **(against(words(beside.read_text("utf-8")), found, expected) if beside.exists() else {})}


def against(true: list[str], ours: list[str], poppler: list[str]) -> dict[str, float]:
    """Both readers beside the true text."""
    return {
        "true_words": overlap(ours, true),
        "true_order": order(ours, true),
        "poppler_true_words": overlap(poppler, true),
        "poppler_true_order": order(poppler, true),
    }


def program(path: Path) -> str:
    """The programs that wrote the text and the file, as the file says."""
    from pypdf import PdfReader

    try:
        said = PdfReader(path).metadata or {}
        named = [str(said[key]) for key in ("/Creator", "/Producer") if said.get(key)]
        return ", ".join(dict.fromkeys(named)) or "unknown"
    except Exception:  # damaged files and locked ones say nothing
        return "unknown"


def quantiles(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    values = sorted(row[name] for row in rows if name in row)
    return {"files": len(values), "median": statistics.median(values), "tenth": values[len(values) // 10]}


def main(folders: list[str]) -> None:
    from triforce_chat.lab.machine import machine

    paths = [path for folder in folders for path in sorted(Path(folder).rglob("*.pdf"))]
    rows = [compared(path) for path in paths]
    said = subprocess.run(["pdftotext", "-v"], capture_output=True, text=True, check=False).stderr
    record = {
        "schema": 1,
        "machine": {**machine(), "poppler": said.split()[2]},
        "command": f"python benchmarks/pdf_text.py {' '.join(Path(folder).name for folder in folders)}",
        "ligatures": sum(row.get("ligatures", 0) for row in rows),
        "summary": {name: quantiles(rows, name) for name in MEASURES if any(name in row for row in rows)},
        "rows": rows,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
