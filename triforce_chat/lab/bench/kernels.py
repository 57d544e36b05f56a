"""Times of the Triton kernels beside what the bytes alone would take, and beside torch's own.

Run as ``python -m triforce_chat.lab.bench.kernels [--json] [--tiny] [--only SECTION ...] [--seconds S]``.
Every case is captured in a CUDA graph that goes round several copies of its buffers, so that they come from memory
and not from the L2 cache. An installed flash-attn is measured beside. Without a CUDA device only ``--tiny`` makes
sense: each case runs by Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from triforce_chat.lab.bench.floor import bandwidth
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, Case
from triforce_chat.lab.bench.kernel_cases.sections import SECTIONS, cases

LAUNCHES = 24  # of one graph, or once round the buffers
REPLAYS = 5
SWEPT = re.compile(r"\d+x\d+x\d+x\d+")
BEST = 5  # tiles of a sweep's summary
SECONDS = 55.0  # after which no further case begins


@dataclass(frozen=True, slots=True)
class Row:
    """What a case took, or why it failed."""

    kernel: str
    shape: str
    ms: float | None = None
    floor_ms: float | None = None
    error: float | None = None  # largest difference from the right answer, over its largest magnitude
    failure: str | None = None


def milliseconds(case: Case) -> float:
    """Time of one call, in a graph that cycles through the buffers."""
    if DEVICE.type != "cuda":  # the interpreter compiles nothing
        started = time.perf_counter()
        case.call(case.copies[0])
        return 1e3 * (time.perf_counter() - started)
    case.call(case.copies[0])  # compiles
    torch.cuda.synchronize()
    launches = max(LAUNCHES, len(case.copies))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(launches):
            case.call(case.copies[at % len(case.copies)])
    graph.replay()
    took: list[float] = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / launches)  # milliseconds
    return min(took)


def measured(case: Case, copied: float) -> Row:
    floor = 1e3 * case.bytes / copied
    try:
        ms = milliseconds(case)
        error = None if case.right is None else difference(case)
        return Row(case.kernel, case.shape, ms, floor, error)
    except Exception as problem:  # one kernel that fails must not hide the others
        return Row(case.kernel, case.shape, failure=f"{type(problem).__name__}: {str(problem)[:200]}")


def difference(case: Case) -> float:
    if case.right is None:
        raise ValueError(f"{case.kernel} has no right answer")
    found, right = case.call(case.copies[0]).float(), case.right(case.copies[0]).float()
    return float((found - right).abs().max() / right.abs().max())


def rows(tiny: bool, sections: Sequence[str], seconds: float) -> Iterator[Row]:
    """Every case in turn, until the time is over."""
    ends = time.monotonic() + seconds
    copied = bandwidth(torch.device(DEVICE))
    yield Row("device copy, TB/s", f"{copied / 1e12:.2f}")
    for make in cases(tiny, sections):
        try:
            for case in make():
                if time.monotonic() > ends:
                    yield Row("stopped", f"after {seconds:.0f} s", failure="the rest was not measured")
                    return
                yield measured(case, copied)
        except Exception as problem:
            yield Row(str(make), "", failure=f"{type(problem).__name__}: {problem}")


def best(found: Sequence[Row]) -> list[str]:
    """One line for each shape of a sweep with its fastest tiles."""
    tried: dict[str, list[tuple[float, str]]] = {}
    for row in found:
        kernel, _, tiles = row.kernel.partition(" ")
        if row.ms is not None and SWEPT.match(tiles):
            tried.setdefault(f"best {kernel} {row.shape}", []).append((1e3 * row.ms, tiles))
    return [
        f"{shape}: " + ", ".join(f"{tiles} {us:.2f}" for us, tiles in sorted(each)[:BEST])
        for shape, each in sorted(tried.items())
    ]


def table(found: Sequence[Row]) -> str:
    """One line for each row, the sweeps' rows of one shape from the fastest on; then what their best tiles are."""
    lines = [f"{'kernel':<40} {'shape':<34} {'us':>9} {'floor':>9} {'share':>6} {'error':>8}"]
    for row in sorted(found, key=lambda each: (bool(SWEPT.search(each.kernel)), each.shape, each.ms or 0.0)):
        line = f"{row.kernel:<40} {row.shape:<34} "
        if row.ms is not None and row.floor_ms is not None:
            line += f"{1e3 * row.ms:9.2f} {1e3 * row.floor_ms:9.2f} {row.floor_ms / row.ms:6.0%}"
        if row.error is not None:
            line += f" {row.error:8.1e}"
        lines.append((line + (row.failure or "")).rstrip())
    return "\n".join([*lines, *best(found)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m triforce_chat.lab.bench.kernels", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object for each case instead of a table")
    parser.add_argument("--tiny", action="store_true", help="shapes that the interpreter can run")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="in this order")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no case begins later")
    chosen = parser.parse_args(arguments)
    with torch.inference_mode():
        found = list(rows(chosen.tiny, chosen.only, chosen.seconds))
    print("\n".join(json.dumps(asdict(row)) for row in found) if chosen.json else table(found))


if __name__ == "__main__":
    main()
