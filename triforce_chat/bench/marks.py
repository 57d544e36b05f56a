"""Names for what happens in an engine while a profiler looks on; put on from outside and taken off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.profiler import record_function

from triforce_chat.bench.timeline import ATTENTION, LEVEL, PART, RETRIEVAL, SAMPLING
from triforce_chat.engine import attention
from triforce_chat.engine.ahead import Adaptive
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.level import Autoregressive, Level, Silent
from triforce_chat.engine.lookup import NgramLookup
from triforce_chat.engine.planner import Planner
from triforce_chat.engine.sampling import Sampler

NAMES = {Autoregressive: "draft", NgramLookup: "lookup", Planner: "planner"}
SAMPLED = ("next", "judge")


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
            own = "step" if hasattr(level, "step") else "propose"
            marks.enter_context(replaced(level, own, _level(name, getattr(level, own), level, forwards)))
        for name in SAMPLED:
            marks.enter_context(replaced(Sampler, name, _part(SAMPLING, getattr(Sampler, name))))
        marks.enter_context(replaced(RetrievalCache, "follow", _part(RETRIEVAL, RetrievalCache.follow)))
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


def _level(name: str, call: Callable[..., Any], level: Any, forwards: Counter[str]) -> Callable[..., Any]:
    alone = isinstance(level, Autoregressive)  # a forward for every token

    @wraps(call)
    def called(*arguments: Any, **named: Any) -> Any:
        with record_function(LEVEL + name):
            made = call(*arguments, **named)
        forwards[name] += len(made) if alone else hasattr(level, "step")
        return made

    return called


def _part(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def called(*arguments: Any, **named: Any) -> Any:
        with record_function(PART + name):
            return call(*arguments, **named)

    return called
