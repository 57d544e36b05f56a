"""The caches of an engine, what each must hold, and short answers that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.engine.cache.quantized_copy import COPY_BITS, UNQUANTIZED, QuantizedCopy
from triforce_chat.engine.cache.retrieval import RetrievalCache, State
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage, QuantizedGroups
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative

STACKS = ("triforce", "triforce-int4", "retrieval", "streaming", "naive", "lookup", "autoregressive", "auto")


def buffer_of(cache: FullCache) -> KVBuffer:
    """The tensors of a cache that is on the device as a whole."""
    slot = cache.storage.slot(0)
    assert slot is not None
    return slot.storage


def levels(level: Any) -> Iterator[Any]:
    """All levels of a stack."""
    yield level
    if isinstance(level, Speculative):
        for arm in level.planner.arms:
            yield from levels(arm.drafter)


def caches(engine: Engine, kind: type) -> list[Any]:
    found = [level.cache for level in levels(engine.top) if hasattr(level, "cache")]
    return [cache for cache in found if isinstance(cache, kind)]


def layer_of(store: KVStorage, layer: int) -> tuple[Tensor, Tensor]:
    """The keys and the values of a layer where they are kept, one slot for each token: [Hkv, capacity, D] each."""
    (keys,), (values,) = store.parts(layer, 0, store.capacity)
    return keys, values


def rows(store: KVStorage, layer: int, head: int, n: int) -> Tensor:
    return torch.cat([part[head, :n] for part in layer_of(store, layer)], -1)


def check_retrieval(cache: RetrievalCache) -> None:
    """Every slot up to the verified end is a verbatim copy of one committed token's row."""
    if cache.state is not State.READY:
        return
    source, verified_length, base = (
        cache.source,
        min(cache.verified_length, cache.source.length),
        cache.layout.total,
    )
    assert verified_length >= base
    assert cache.length >= verified_length
    end = cache._slot(verified_length)
    shape = source.shape
    for layer in range(shape.layers):
        for head in range(shape.kv_heads):
            have = rows(cache.storage, layer, head, end)
            want = rows(source.storage, layer, head, source.length)
            equal = (have[:, None] == want[None]).all(-1)  # [slots, positions]
            assert equal.any(1).all()
            where = equal.long().argmax(1)
            assert len(set(where.tolist())) == end  # no position twice
            assert where.tolist() == sorted(where.tolist())  # in reading order
            sinks = min(cache.budget.sinks, base)
            assert where[:sinks].tolist() == list(range(sinks))
            tail = min(cache.budget.tail, base) + verified_length - base
            assert where[end - tail :].tolist() == list(range(verified_length - tail, verified_length))


def check_copy(cache: QuantizedCopy) -> None:
    """All groups but the newest are the source's, quantized; the tokens after them are the source's own."""
    source, end = cache.source, cache.filled
    assert cache.quantized % GROUP == 0
    assert cache.quantized <= end <= source.held
    assert end - cache.quantized < UNQUANTIZED + GROUP
    fresh = QuantizedGroups(source.shape, source.storage.capacity, COPY_BITS)
    for layer in range(source.shape.layers):
        keys, values = source.storage.view(layer, end).whole
        held, wanted = (groups.first(layer, cache.quantized) for groups in (cache.groups, fresh))
        wanted.write(0, keys[0, :, : cache.quantized], values[0, :, : cache.quantized])
        for head in range(source.shape.kv_heads):
            mine, theirs = (each.of_head(head, torch.float32) for each in (held, wanted))
            assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
        newest = slice(0, end - cache.quantized)
        assert torch.equal(cache.latest.keys[layer, :, newest], keys[0, :, cache.quantized : end])
        assert torch.equal(cache.latest.values[layer, :, newest], values[0, :, cache.quantized : end])


def in_turn(planner: Planner, length: int, n: int, match: int, needed: int) -> Plan:  # noqa: ARG001
    turn = planner.rounds % 3
    return Plan(min(n, 3), planner.arms[turn] if turn < 2 else None)


def answer_of(engine: Engine, prompt: list[int], n: int = 16) -> list[int]:
    events = engine.answer(Request(prompt, n))
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


def interrupt(
    patch: pytest.MonkeyPatch, methods: Iterable[tuple[type, str]], call: int, late: bool = False
) -> None:
    """Press Ctrl-C in the call of that number of these methods: at its beginning, or at its end if ``late``."""
    calls = count(1)

    def breaking(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            now = next(calls) == call
            if now and not late:
                raise KeyboardInterrupt
            found = real(*arguments)
            if now:
                raise KeyboardInterrupt
            return found

        return wrapped

    for kind, name in methods:
        patch.setattr(kind, name, breaking(getattr(kind, name)))


def told_until_interrupt(engine: Engine, request: Request) -> tuple[list[int], bool]:
    """The prompt and what of an answer was told, and whether Ctrl-C ended it."""
    told = [*request.prompt]
    try:
        for event in engine.answer(request):
            told += event.token_ids if isinstance(event, Text) else ()
    except KeyboardInterrupt:
        return told, True
    return told, False
