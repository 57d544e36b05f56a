"""Compares the text that this program reads from PDF files with that of Poppler's pdftotext.

    python benchmarks/pdf_text.py FOLDER...

For each file: the words that both have (twice their number by the number of all), and of the words that stand once in
either text the share that is in the same order. Ligatures and hyphens at line ends do not count as differences. Files
that one of the two cannot read, or in whose text pdftotext has characters without a meaning, are named and left out.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import unicodedata
from bisect import bisect_left
from collections import Counter
from pathlib import Path

from triforce_chat.documents import read
from triforce_chat.documents.readable import doubt
from triforce_chat.errors import DocumentError

LIGATURES = re.compile("[\ufb00-\ufb06]")
LINE_HYPHEN = re.compile(r"(?<=[^\W\d_])[-‐\u00ad]\s*\n\s*(?=[^\W\d_])")
DOUBTED = 0.01  # of the characters


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


def compared(path: Path) -> tuple[float, float] | str:
    """(overlap, order), or why the file is left out."""
    done = subprocess.run(["pdftotext", "-enc", "UTF-8", str(path), "-"], capture_output=True, check=False)
    theirs = done.stdout.decode("utf-8", "replace")
    try:
        document = read(str(path))
    except DocumentError as error:
        return str(error).partition(": ")[2]
    assert not LIGATURES.search(document.text), path
    if doubt(theirs.replace("\f", "")) > DOUBTED:
        return f"pdftotext cannot decode it; {document.warning}"
    expected = words(theirs)
    if not expected:
        return "pdftotext finds no word"
    found = words(document.text)
    return overlap(found, expected), order(found, expected)


def main(folders: list[str]) -> None:
    paths = [path for folder in folders for path in sorted(Path(folder).rglob("*.pdf"))]
    figures = []
    for path in paths:
        result = compared(path)
        if isinstance(result, str):
            print(f"  left out           {path.name}: {result}")
        else:
            figures.append(result)
            print(f"  {result[0]:.3f} words  {result[1]:.3f} order  {path.name}")
    for at, name in enumerate(("words", "order")):
        values = sorted(each[at] for each in figures)
        tenth = values[len(values) // 10]
        print(
            f"{name}: median {statistics.median(values):.3f}, 10 % quantile {tenth:.3f}, of {len(values)} files"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
