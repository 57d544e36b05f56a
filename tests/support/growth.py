"""How the processor time of hostile documents grows with their size, by reading them at doubled sizes.

    PYTHONPATH=tests python -m support.growth --first 65536 --doublings 4

A time that is proportional to the size doubles with it; one that goes by its square becomes four times as long.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

from support.hostile_documents import epub
from support.survey import examined

Maker = Callable[[int], bytes]  # a document of about so many bytes
LEAST = 0.1  # seconds; shorter times say nothing about growth
SHIP = b"<html><p>A ship.</p>"


def repeated(piece: bytes, end: bytes = b"") -> Maker:
    return lambda size: SHIP + piece * (size // len(piece)) + end


def in_epub(make: Maker) -> Maker:
    return lambda size: epub(a_html=make(size))


PIECES = {
    "comments that never end": repeated(b"<!--"),
    "comments that never end, with >": repeated(b"<!-- x>"),
    "comments, the last one ends": repeated(b"<!-- x>", b"-->"),
    "half comments": repeated(b"<!-"),
    "marked sections that never end": repeated(b"<![CDATA["),
    "marked sections that never end, with >": repeated(b"<![CDATA[ >"),
    "conditions that never end, with >": repeated(b"<![if >"),
    "tags that never end": repeated(b"<meta charset=x", b"\xff"),
    "end tags that never end": repeated(b"</p"),
    "instructions that never end": repeated(b"<?x"),
    "references that never end": repeated(b"&#x"),
    "scripts that never end": repeated(b"<script><"),
    "attributes that end late": repeated(b"<p a='x\" ", b">"),
    "attributes that never end": repeated(b"<p a='x\" "),
    "elements that never end": repeated(b"<b>x"),
}
CASES: dict[str, tuple[str, Maker]] = {
    **{name: ("HTML", make) for name, make in PIECES.items()},
    **{f"{name}, in a book": ("EPUB", in_epub(make)) for name, make in PIECES.items()},
}


def times(name: str, first: int, doublings: int) -> Iterator[tuple[int, float, str]]:
    """(bytes of markup, seconds of processor time, outcome) of one case at doubled sizes."""
    kind, make = CASES[name]
    for size in (first << doubling for doubling in range(doublings + 1)):
        result = examined(name, make(size), kind)
        yield size, result.seconds, result.why or result.outcome


def exponent(measured: list[tuple[int, float, str]]) -> float | None:
    """1 where time goes with the size, 2 where it goes with its square; None where all is too quick to say."""
    (before, short, _), (after, long, _) = measured[-2:]
    return math.log(long / short) / math.log(after / before) if short > LEAST else None


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--first", type=int, default=1 << 16, help="bytes of markup")
    options.add_argument("--doublings", type=int, default=4)
    options.add_argument("--case", action="append", choices=[*CASES], help="only these")
    chosen = options.parse_args()
    for name in chosen.case or CASES:
        measured = list(times(name, chosen.first, chosen.doublings))
        grows = exponent(measured)
        seconds = "  ".join(f"{each[1]:6.2f}" for each in measured)
        told = "" if grows is None else f"  size^{grows:.1f}"
        print(f"{name:50} {seconds} s{told}  {measured[-1][2]}", flush=True)


if __name__ == "__main__":
    main()
