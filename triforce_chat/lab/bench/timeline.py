"""Reads a timeline of torch.profiler (Chrome's trace format): whose time it is, and what it went to.

A kernel belongs to the region in which the processor launched it, whenever it ran; so do all kernels of a CUDA
graph, which are launched by one call. Without a GPU an operator's own time counts, that of its parts left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEVEL, PART = "level:", "part:"  # beginnings of the names of marked regions
ELSEWHERE = "elsewhere"  # outside all levels
ATTENTION, MATMUL, SAMPLING = "attention", "matmul", "sampling"
RETRIEVAL, COPIES, RANKS, OTHER = "retrieval cache", "host-device copies", "between GPUs", "other"
GROUPS = (ATTENTION, MATMUL, SAMPLING, RETRIEVAL, COPIES, RANKS, OTHER)
BY_NAME = (
    (RANKS, re.compile(r"nccl|c10d::|gloo:", re.IGNORECASE)),
    (ATTENTION, re.compile(r"flash|fmha|attention|attn|split_?kv|\bmha|sdp", re.IGNORECASE)),
    (
        MATMUL,
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|wgmma|xmma|splitk|matmul|aten::(mm|addmm|bmm|linear)\b|"
            r"mkldnn.*linear|_mm_|int[48]mm|dequant",
            re.IGNORECASE,
        ),
    ),
    (
        SAMPLING,
        re.compile(
            r"softmax|topk|top_k|sort|cumsum|scan_|argmax|multinomial|searchsorted|bucketize|"
            r"distribution|philox|uniform|aten::(rand|gather|scatter|nonzero|any|argmax)",
            re.IGNORECASE,
        ),
    ),
)
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
THOUSAND = 1000.0  # microseconds

Span = tuple[float, float]  # from, to, in microseconds


@dataclass(frozen=True, slots=True)
class Overlap:
    """Milliseconds of copies from the host, of arithmetic, and of both at the same time."""

    copies_ms: float
    compute_ms: float
    both_ms: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or operator of one level, all its runs together."""

    name: str
    level: str
    group: str
    ms: float
    runs: float


@dataclass(slots=True)
class Timeline:
    """Milliseconds by level and group, and those in which anything ran at all."""

    on_device: bool
    ms: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    kernels: dict[tuple[str, str, str], tuple[float, int]] = field(default_factory=dict)
    busy_ms: float = 0.0
    overlap: Overlap | None = None

    def add(self, name: str, level: str, group: str, ms: float) -> None:
        self.ms[level][group] += ms
        before, runs = self.kernels.get((name, level, group), (0.0, 0))
        self.kernels[name, level, group] = before + ms, runs + 1

    def heaviest(self, most: int) -> list[Kernel]:
        every = [Kernel(*key, ms, runs) for key, (ms, runs) in self.kernels.items()]
        return sorted(every, key=lambda kernel: -kernel.ms)[:most]


class Regions:
    """Marked regions of one thread, which lie inside one another or apart."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.starts: list[float] = []
        self.stacks: list[
            list[tuple[float, str]]
        ] = []  # open from that start on: (end, name), innermost last
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            before = self.stacks[-1] if self.stacks else []
            still = [each for each in before if each[0] > event["ts"]]
            self.starts.append(event["ts"])
            self.stacks.append([*still, (event["ts"] + event["dur"], event["name"])])

    def at(self, time: float) -> tuple[str, str | None]:
        """The innermost level, and the innermost part of its work if there is one."""
        place = bisect_right(self.starts, time) - 1
        level, part = ELSEWHERE, None
        for end, name in self.stacks[place] if place >= 0 else ():
            if end < time:
                continue
            if name.startswith(LEVEL):
                level, part = name.removeprefix(LEVEL), None
            else:
                part = name.removeprefix(PART)
        return level, part


def timeline(events: Sequence[Mapping[str, Any]]) -> Timeline:
    """What the events of a trace come to."""
    whole = [event for event in events if event.get("ph") == "X"]
    by_thread: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in whole:
        if event.get("cat") == "user_annotation" and event["name"].startswith((LEVEL, PART)):
            by_thread[event["tid"]].append(event)
    regions = {thread: Regions(marked) for thread, marked in by_thread.items()}
    on_device = [event for event in whole if event.get("cat") in ON_DEVICE]
    return _of_device(whole, on_device, regions) if on_device else _of_processor(whole, regions)


def _of_device(
    whole: Sequence[Mapping[str, Any]], ran: Sequence[Mapping[str, Any]], regions: Mapping[Any, Regions]
) -> Timeline:
    launched = {
        event["args"]["correlation"]: (event["tid"], event["ts"])
        for event in whole
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", ())
    }
    found = Timeline(on_device=True)
    for event in ran:
        thread, time = launched.get(event.get("args", {}).get("correlation"), (None, 0.0))
        level, part = regions[thread].at(time) if thread in regions else (ELSEWHERE, None)
        found.add(event["name"], level, group_of(event["name"], event["cat"], part), event["dur"] / THOUSAND)
    copies = union(span_of(event) for event in ran if is_copy(event, "HtoD"))
    compute = union(span_of(event) for event in ran if event["cat"] == "kernel")
    found.busy_ms = length(union(span_of(event) for event in ran)) / THOUSAND
    found.overlap = Overlap(
        length(copies) / THOUSAND, length(compute) / THOUSAND, length(common(copies, compute)) / THOUSAND
    )
    return found


def _of_processor(whole: Sequence[Mapping[str, Any]], regions: Mapping[Any, Regions]) -> Timeline:
    found = Timeline(on_device=False)
    for thread, marked in regions.items():
        operators = [event for event in whole if event.get("cat") == "cpu_op" and event["tid"] == thread]
        for event, own in own_times(operators):
            level, part = marked.at(event["ts"])
            found.add(event["name"], level, group_of(event["name"], "cpu_op", part), own / THOUSAND)
            found.busy_ms += own / THOUSAND
    return found


def own_times(events: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Every event with its duration less that of the events inside it."""
    found: list[tuple[Mapping[str, Any], float]] = []
    around: list[int] = []  # places in ``found`` of the events that are open
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while around and _end(found[around[-1]][0]) <= event["ts"]:
            around.pop()
        if around:
            outer, own = found[around[-1]]
            found[around[-1]] = outer, own - event["dur"]
        around.append(len(found))
        found.append((event, event["dur"]))
    return found


def group_of(name: str, category: str, part: str | None) -> str:
    """What kind of work a kernel or an operator does."""
    if category == "gpu_memcpy" and ("HtoD" in name or "DtoH" in name):
        return COPIES
    if BY_NAME[0][1].search(name):
        return RANKS
    if part in GROUPS:
        return part
    return next((group for group, pattern in BY_NAME if pattern.search(name)), OTHER)


def is_copy(event: Mapping[str, Any], way: str) -> bool:
    return event["cat"] == "gpu_memcpy" and way in event["name"]


def span_of(event: Mapping[str, Any]) -> Span:
    return event["ts"], _end(event)


def union(spans: Iterable[Span]) -> list[Span]:
    """The intervals without overlaps, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The time that lies in both; each in order and without overlaps."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def _end(event: Mapping[str, Any]) -> float:
    end: float = event["ts"] + event["dur"]
    return end
