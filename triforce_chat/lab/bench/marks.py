"""Names for what happens in an engine while a profiler looks on; put on from outside and taken off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.profiler import record_function

from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.forward import attention
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.async_decoder import Adaptive
from triforce_chat.engine.speculation.chain import Made
from triforce_chat.engine.speculation.level import Autoregressive, Level, Silent
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.relay import Rounds
from triforce_chat.lab.bench.timeline import ATTENTION, LEVEL, PART, RETRIEVAL, SAMPLING

NAMES = {Autoregressive: "draft", NgramLookup: "lookup", Planner: "planner"}
SAMPLED = ("next", "judge")


def _one(_: Any) -> int:
    return 1


def _none(_: Any) -> int:
    return 0


def _drafted(made: Made) -> int:
    return len(made.tokens)


# Of rounds that nobody waits for: their levels, and how many forwards made what they return.
RELAYED: dict[str, tuple[str, Callable[[Any], int]]] = {
    "next": ("retrieval", _one),
    "drafted": ("draft", _drafted),
}


def levels_of(level: Any) -> Iterator[tuple[str, Any]]:
    """A level and all those below it, with their names."""
    if isinstance(level, Silent):
        return
    if isinstance(level, Adaptive):
        yield from levels_of(level.plain)
        yield from levels_of(level.fast)
        return
    yield getattr(level, "name", None) or NAMES.get(type(level), type(level).__name__.lower()), level
    below: list[Level] = [getattr(level, name) for name in ("drafter", "lookup") if hasattr(level, name)]
    for each in (*below, *(arm.level for arm in getattr(level, "arms", ()))):
        yield from levels_of(each)


@contextmanager
def marked(top: Any) -> Iterator[Counter[str]]:
    """Mark regions of all levels; counts each level's forwards meanwhile."""
    forwards: Counter[str] = Counter()
    with ExitStack() as marks:
        for name, level in levels_of(top):
            steps = hasattr(level, "step")
            own = "step" if steps else "propose"
            alone = isinstance(level, Autoregressive)
            count = _one if steps else len if alone else _none
            marks.enter_context(replaced(level, own, _level(name, getattr(level, own), forwards, count)))
        for own, (name, count) in RELAYED.items():
            marks.enter_context(replaced(Rounds, own, _level(name, getattr(Rounds, own), forwards, count)))
        for name in SAMPLED:
            marks.enter_context(replaced(Sampler, name, _part(SAMPLING, getattr(Sampler, name))))
        marks.enter_context(replaced(RetrievalCache, "on_layer", _part(RETRIEVAL, RetrievalCache.on_layer)))
        marks.enter_context(_attention())
        yield forwards


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute for a while; what was not the owner's own is not left behind."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def _attention() -> Iterator[None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(attention.NAME, _part(ATTENTION, attention.attend))
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS.register(attention.NAME, attention.attend)


def _level(
    name: str, call: Callable[..., Any], forwards: Counter[str], count: Callable[[Any], int]
) -> Callable[..., Any]:
    """``call`` as a region of that level; ``count`` says how many forwards made what it returned."""

    @wraps(call)
    def called(*arguments: Any, **named: Any) -> Any:
        with record_function(LEVEL + name):
            made = call(*arguments, **named)
        forwards[name] += count(made)
        return made

    return called


def _part(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def called(*arguments: Any, **named: Any) -> Any:
        with record_function(PART + name):
            return call(*arguments, **named)

    return called
