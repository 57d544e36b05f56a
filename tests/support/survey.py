"""Reads damaged and hostile documents, each in a process with the limits of ``documents.child``, and counts.

    PYTHONPATH=tests python -m support.survey --count 3000 --bombs

A process that has the parsers in memory already is forked for each document, so that thousands take minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from random import Random

from support import hostile_documents, seed_documents
from support.mutations import mutated
from triforce_chat.documents import Document, Page, apart, child, epub, html, office, pdf, text
from triforce_chat.documents.reader import detect
from triforce_chat.errors import DocumentError

PARSERS = (epub, html, office, pdf, text)  # imported before anything is forked
HANG = 30.0  # seconds
SLOW = 1.0  # seconds; what takes longer is printed


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one document: ``read``, ``refused`` (with why), or the name of a failure."""

    name: str
    outcome: str
    why: str
    bytes: int
    seconds: float  # of processor time
    peak_mb: int

    @property
    def failed(self) -> bool:
        return self.outcome not in ("read", "refused") or self.seconds > HANG


def damaged(count: int, first: int) -> Iterator[tuple[str, str, bytes]]:
    """(name, suffix, bytes) of ``count`` mutations; number n is the same in every run on the same seeds."""
    originals = seed_documents.seeds()
    suffixes = {"PDF": ".pdf", "EPUB": ".epub", "HTML": ".html", "Markdown": ".md", "text": ".txt"}
    suffixes |= {"Word": ".docx", "PowerPoint": ".pptx", "OpenDocument": ".odt"}
    for number in range(first, first + count):
        random = Random(number)
        at = random.randrange(len(originals))
        kind, data = originals[at]
        yield f"mutation {number} of {kind} {at}", suffixes[kind], mutated(random, data, kind)


def hostile() -> Iterator[tuple[str, str, bytes]]:
    yield from ((f"{name} ({suffix})", suffix, make()) for name, suffix, make in hostile_documents.bombs())


def survey(documents: Iterable[tuple[str, str, bytes]]) -> Iterator[Result]:
    for name, suffix, data in documents:
        result = examined(name, data, detect(data, PurePath(f"x{suffix}").suffix))
        if result.seconds > SLOW or result.failed:
            print(_line(result), flush=True)
        yield result


def examined(name: str, data: bytes, kind: str) -> Result:
    """Read it as ``apart.parse_apart`` would, in a fork instead of a new interpreter."""
    asked = apart.request(data, kind, None)
    inlet, outlet = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(inlet)
        _serve(asked, outlet)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(worker, 0)
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024
    late = os.waitstatus_to_exitcode(status) == apart.OUT_OF_TIME
    outcome, why = ("refused", "not read in time") if late else _judged(said)
    return Result(name, outcome, why, len(data), round(seconds, 2), peak)


def _serve(asked: bytes, outlet: int) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what libraries print, as in ``child.main``
        child.limit(asked)
        with os.fdopen(outlet, "wb") as out:
            out.write(child.answer(asked))
    finally:
        os._exit(0)


def _judged(said: bytes) -> tuple[str, str]:
    try:
        found = apart.parsed(said)
    except DocumentError as error:
        return ("refused", str(error)) if str(error).isprintable() else ("odd message", str(error))
    except apart.Damaged as error:
        return "refused", f"damaged {error}"
    if not all(isinstance(each, str) for each in (*found.texts, found.title)):
        return "no text", ""
    try:
        "".join(found.texts).encode()
    except UnicodeEncodeError as error:
        return "surrogates", str(error)
    try:
        Document("x", "x", tuple(map(Page, range(9**9), found.texts)), found.unit, found.broken).with_text()
    except DocumentError as error:
        return "refused", str(error)
    return "read", ""


def _line(result: Result) -> str:
    failed = "FAILED " if result.failed else ""
    told = f"{result.name}: {result.outcome} {result.why}".rstrip()
    return f"{failed}{result.seconds:6.2f} s {result.peak_mb:5} MB  {told}"


def summary(results: list[Result]) -> str:
    slowest, largest = max(r.seconds for r in results), max(r.peak_mb for r in results)
    read = sum(r.outcome == "read" for r in results)
    refused = sum(r.outcome == "refused" for r in results)
    return (
        f"{len(results):,} documents: {read:,} read, {refused:,} refused in one line, "
        f"{sum(r.failed for r in results)} failed; slowest {slowest:.1f} s, peak {largest} MB"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=200, help="mutations")
    options.add_argument("--first", type=int, default=0, help="number of the first")
    options.add_argument("--bombs", action="store_true", help="the hostile documents as well")
    options.add_argument("--json", type=Path, help="write every result to this file")
    chosen = options.parse_args()
    documents = [*damaged(chosen.count, chosen.first)]
    results = list(survey(documents))
    if chosen.bombs:
        results += survey(hostile())
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(summary(results))
    sys.exit(any(result.failed for result in results))


if __name__ == "__main__":
    main()
