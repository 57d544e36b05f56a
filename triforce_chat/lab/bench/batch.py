"""Different texts at once: a stack beside plain decoding of the same batch, from the same prefilled caches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from triforce_chat.chat.events import Tally
from triforce_chat.engine.engine import PLAIN, Engine, Request
from triforce_chat.engine.events import Event
from triforce_chat.engine.gathered import Ended, Gathered
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.together import Place, Places
from triforce_chat.errors import OutOfMemory, UsageError
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.measure import drawn_by
from triforce_chat.lab.bench.row import fresh
from triforce_chat.lab.machine import finish
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.memory import free_bytes
from triforce_chat.settings.engine_options import sampling_of, stack_for
from triforce_chat.settings.sizes import readable


@dataclass(frozen=True, slots=True)
class Batched:
    """One stack on one batch; seconds from the first decoded token to the last, all prompts being in the caches."""

    contender: str
    sequences: int
    context: int  # tokens of each prompt
    temperature: float
    tokens: int  # of all answers
    seconds: float  # the median of several runs
    spread_s: tuple[float, float]  # of these runs
    ms_per_token: float  # of all answers at once
    full_ms_per_token: float  # the same until the first answer ended: while all sequences were running
    tokens_per_round: float  # of each sequence
    fresh: float | None  # share of the answers' runs of four tokens that had not come before in them
    speedup: float | None = None  # over plain decoding of the same batch at this temperature and length
    full_speedup: float | None = None  # the same by full_ms_per_token


class Timed(NamedTuple):
    """One run; ``full_ms``: milliseconds per token until the first answer ended."""

    seconds: float
    tallies: list[Tally]
    full_ms: float


def several(engine: EngineProtocol) -> Engine:
    """The engine that those of all sequences are forked from; it frees what only its own answers would need.

    Raises UsageError if the engine runs one sequence at a time.
    """
    origin = engine.forkable
    if origin is None:
        raise UsageError(
            "--batch needs an engine that runs several sequences at once, which this one does not"
        )
    origin.give_way(0)
    return origin


def measure_batch(
    origin: Engine,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    cases: Sequence[Case],
    repeats: int,
    warmup: int,
    past_end: bool,
    same_text: bool = False,
) -> Iterator[Batched]:
    """Every case on all prompts at once, after plain decoding with the same temperature and length.

    ``same_text``: every case decodes what plain decoding drew there, accepting drafts as often as if it had sampled
    that by itself. Raises OutOfMemory.
    """
    most = max(case.settings.max_tokens for case in cases)
    requests = [Request(prompt, most, past_end=past_end) for prompt in prompts]
    gathered: Gathered[Event] = Gathered()
    places = Places.of(origin, requests, len(requests), shared=0)
    origin.clear_pools()  # of another batch
    require_memory(origin, places)
    rooms = [places.take(number) for number in range(len(requests))]
    engines = [origin.fork(0, places.context, gathered, room) for room in rooms]
    for each, request in zip(engines, requests, strict=True):
        for _ in each.prefill(request.prompt[:-1]):
            pass
    measured = partial(_measured, gathered, engines, rooms, loaded, repeats, warmup)
    plain: dict[tuple[float | None, int], tuple[Batched, list[Request]]] = {}
    for case in cases:
        if case.footing not in plain:
            settings = drawn_by(case.settings) if same_text else replace(case.settings, stack=PLAIN.name)
            made, tallies = measured(requests, replace(case, settings=settings, varied={}))
            texts = [tally.token_ids if same_text else () for tally in tallies]
            forced = [replace(each, forced=text) for each, text in zip(requests, texts, strict=True)]
            plain[case.footing] = made, forced
            yield replace(made, speedup=1.0, full_speedup=1.0)
        if not case.plain:
            base, asked = plain[case.footing]
            made, _ = measured(asked, case)
            # By milliseconds per token, as sampled answers may end early.
            gain = base.ms_per_token / made.ms_per_token
            full = base.full_ms_per_token / made.full_ms_per_token
            yield replace(made, speedup=gain, full_speedup=full)


def require_memory(origin: Engine, places: Places) -> None:
    """Raises OutOfMemory if there is no room for the keys and values of all sequences."""
    free, each = free_bytes(origin.target.device), places.bytes_each
    if free is not None and places.count * each > free:
        size = f"{places.count} x {places.context:,} tokens of keys and values take {readable(places.count * each)}"
        raise OutOfMemory(f"{size}, {readable(free)} are free: {free // each:,} at once fit")


def _measured(
    gathered: Gathered[Event],
    engines: Sequence[Engine],
    rooms: Sequence[Place],
    loaded: LoadedModel,
    repeats: int,
    warmup: int,
    requests: Sequence[Request],
    case: Case,
) -> tuple[Batched, list[Tally]]:
    """The figures, and what was answered in the last run."""
    sampling = sampling_of(case.settings, loaded)
    stack = engines[0].gathered_options(stack_for(case.settings, loaded), len(requests), 0)
    for room, engine in zip(rooms, engines, strict=True):
        room.begin("")  # in place of the last stack's caches
        engine.restack(stack)
    asked = [replace(request, sampling=sampling) for request in requests]
    engines[0].prepare(asked[0])
    if warmup:
        _timed(gathered, engines, [replace(each, max_tokens=warmup) for each in asked])
    wanted = [replace(each, max_tokens=case.settings.max_tokens) for each in asked]
    runs = [_timed(gathered, engines, wanted) for _ in range(repeats)]
    seconds, tallies = [run.seconds for run in runs], runs[-1].tallies
    tokens, median = sum(len(each.token_ids) for each in tallies), statistics.median(seconds)
    made = Batched(
        contender=case.name,
        sequences=len(requests),
        context=len(requests[0].prompt),
        temperature=sampling.temperature,
        tokens=tokens,
        seconds=median,
        spread_s=(min(seconds), max(seconds)),
        ms_per_token=1000 * median / max(1, tokens),
        full_ms_per_token=statistics.median(run.full_ms for run in runs),
        tokens_per_round=tokens / max(1, sum(each.rounds for each in tallies)),
        fresh=fresh([each.token_ids for each in tallies]),
    )
    return made, tallies


def _timed(gathered: Gathered[Event], engines: Sequence[Engine], requests: Sequence[Request]) -> Timed:
    """Decode; the prompts are in the caches."""
    tallies, device = [Tally() for _ in requests], engines[0].target.device
    finish(device)
    started, full_ms = time.perf_counter(), 0.0
    for number, (engine, request) in enumerate(zip(engines, requests, strict=True)):
        gathered.add(number, partial(engine.answer, request))
    try:
        while gathered.members:
            for number, made in gathered.step():
                if not isinstance(made, Ended):
                    tallies[number].add(made)
                elif made.error:
                    raise made.error
                elif not full_ms:
                    made_s, tokens = (
                        time.perf_counter() - started,
                        sum(len(each.token_ids) for each in tallies),
                    )
                    full_ms = 1000 * made_s / max(1, tokens)
    finally:
        gathered.close()
    finish(device)
    return Timed(time.perf_counter() - started, tallies, full_ms)
