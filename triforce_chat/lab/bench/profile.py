"""Where the milliseconds of a round of decoding go, level by level, beside what its bytes must take."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from triforce_chat.engine.cache.full import QUERY_WINDOW
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.errors import UsageError
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.floor import bandwidth, host_bandwidth, matmul_rate, steps
from triforce_chat.lab.bench.marks import marked
from triforce_chat.lab.bench.measure import Bench
from triforce_chat.lab.bench.timeline import GROUPS, Kernel, Overlap, Timeline, timeline
from triforce_chat.lab.machine import finish
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.settings.engine_options import sampling_of

SKIPPED, ROUNDS = 12, 8  # the first ones are a planner's trials
ROOM = (SKIPPED + ROUNDS + 1) * 40  # tokens that such rounds may yield
HEAVIEST = 20  # kernels that are named


@dataclass(frozen=True, slots=True)
class Reading:
    """How fast a prompt was read, and how much of that matrix products alone would allow."""

    tokens_per_s: float
    flops: float  # operations per second, of each GPU
    matmul_flops: float  # the same of one large product

    @property
    def share(self) -> float:
        return self.flops / self.matmul_flops


@dataclass(frozen=True, slots=True)
class Profile:
    """One case on one prompt; everything is of one round of the top level, in the mean over some."""

    case: str
    context: int
    prefill: Reading
    temperature: float
    rounds: int  # traced
    ms_per_round: float  # without tracing
    traced_ms_per_round: float
    tokens_per_round: float
    ms_per_token: float
    clock: str
    levels: list[str]
    groups: list[str]
    ms: dict[str, dict[str, float]]  # by level and kind of work
    idle_ms: float  # of a round without tracing, less what ran
    forwards: dict[str, float]
    floor_ms: dict[str, float]  # of all a level's forwards in a round
    floor_total_ms: float
    bandwidth: float  # bytes per second
    host_bandwidth: float | None
    overlap: Overlap | None
    heaviest: list[Kernel]
    trace: str | None  # file of the timeline


@dataclass(slots=True)
class Rounds:
    """Some rounds in the middle of an answer."""

    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0


def profiles(
    bench: Bench, ids: Sequence[int], cases: Sequence[Case], trace: Path | None
) -> Iterator[Profile]:
    """Each case in turn on one prefilled prompt; ``trace`` keeps the timeline of the last."""
    read = reading(bench, ids)
    for case in cases:
        bench.warm(ids, case.settings)
        yield profile(bench, ids, case, read, trace)


def engine_of(bench: Bench) -> Any:
    """Rank 0's, where there are several."""
    return getattr(bench.engine, "engine", bench.engine)


def reading(bench: Bench, ids: Sequence[int]) -> Reading:
    """Prefill twice, of which the first may have to prepare something; the prompt stays read."""
    engine = engine_of(bench)
    rate = max(bench.prefill(ids) for _ in range(2))
    dimensions = Dimensions.of(engine.target.model.config.to_dict())
    flops = dimensions.prefill_flops(len(ids), engine.group.size) * rate / len(ids)
    return Reading(rate, flops, matmul_rate(engine.target.device, engine.target.shape.dtype))


def profile(
    bench: Bench, ids: Sequence[int], case: Case, read: Reading, trace: Path | None = None
) -> Profile:
    """Some rounds unobserved, the same rounds observed."""
    engine = engine_of(bench)
    device = engine.target.device
    free = rounds(bench, ids, case)
    with marked() as forwards:
        profiler = RoundProfiler(device, forwards, trace)
        seen = rounds(bench, ids, case, profiler.begin, profiler.end)
    found = profiler.timeline()
    n, moved, hosted = seen.rounds, bandwidth(device), host_bandwidth(device)
    known = steps(engine)
    counts = {level: count / n for level, count in profiler.forwards.items() if count}
    floor = {level: counts[level] * known[level].ms(moved, hosted) for level in counts if level in known}
    ms_per_round = 1000 * free.seconds / free.rounds
    streams = bool(known["target"].streamed)
    return Profile(
        case=case.name,
        context=len(ids),
        prefill=read,
        temperature=sampling_of(case.settings, bench.loaded).temperature,
        rounds=n,
        ms_per_round=ms_per_round,
        traced_ms_per_round=1000 * seen.seconds / n,
        tokens_per_round=free.tokens / free.rounds,
        ms_per_token=1000 * free.seconds / free.tokens,
        clock="on the device" if found.on_device else "on the processor, slowed by being watched",
        levels=sorted(found.ms, key=lambda level: -sum(found.ms[level].values())),
        groups=[name for name in GROUPS if any(name in kinds for kinds in found.ms.values())],
        ms={level: {kind: ms / n for kind, ms in kinds.items()} for level, kinds in found.ms.items()},
        idle_ms=max(0.0, ms_per_round - found.busy_ms / n),
        forwards=counts,
        floor_ms=floor,
        floor_total_ms=sum(floor.values()),
        bandwidth=moved,
        host_bandwidth=hosted,
        overlap=_each(found.overlap, n) if streams and found.overlap else None,
        heaviest=[replace(each, ms=each.ms / n, runs=each.runs / n) for each in found.heaviest(HEAVIEST)],
        trace=str(trace) if trace else None,
    )


def _each(overlap: Overlap, n: int) -> Overlap:
    return Overlap(overlap.copies_ms / n, overlap.compute_ms / n, overlap.both_ms / n)


def nothing() -> None:
    """Nobody looks on."""


def rounds(
    bench: Bench,
    ids: Sequence[int],
    case: Case,
    begin: Callable[[], None] = nothing,
    end: Callable[[], None] = nothing,
) -> Rounds:
    """Decode; ``begin`` is called when some rounds have passed, and ``end`` some rounds later."""
    device, found, passed, started = bench.engine.target.device, Rounds(), 0, 0.0
    bench.engine.settle(ids[: max(1, len(ids) - QUERY_WINDOW)])
    request = replace(bench.request(ids, case.settings, ROOM), past_end=True)
    answer: Any = bench.engine.answer(request)
    with closing(answer) as events:
        for event in events:
            if isinstance(event, Prefilled):
                finish(device)
            if not isinstance(event, Text):
                continue
            passed += 1
            if passed == SKIPPED:
                finish(device)
                begin()
                started = time.perf_counter()
            elif passed > SKIPPED:
                found.rounds, found.tokens = found.rounds + 1, found.tokens + len(event.token_ids)
                if found.rounds == ROUNDS:
                    break
        finish(device)
        found.seconds = time.perf_counter() - started
        if passed >= SKIPPED:
            end()
    if not found.rounds:
        raise UsageError(f"the answer ended within {SKIPPED} rounds: nothing to profile")
    return found


class RoundProfiler:
    """torch's profiler over some rounds, and how many forwards they had."""

    def __init__(self, device: torch.device, counted: Counter[str], keep: Path | None) -> None:
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profiler = torch.profiler.profile(activities=kinds)
        self.counted, self.keep = counted, keep
        self.forwards: Counter[str] = Counter()

    def begin(self) -> None:
        self.profiler.start()
        self.counted.clear()

    def end(self) -> None:
        self.forwards = Counter(self.counted)
        self.profiler.stop()

    def timeline(self) -> Timeline:
        with tempfile.TemporaryDirectory() as folder:
            path = self.keep or Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            exported = json.loads(path.read_text("utf-8", errors="replace"), strict=False)
        return timeline(exported["traceEvents"])
