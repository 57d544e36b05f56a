"""Names for the phases of an engine while a profiler is attached; put on from outside and taken off again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.profiler import record_function

from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.modules import SelfAttention
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.lab.bench.timeline import ATTENTION, LEVEL, PART, RETRIEVAL, SAMPLING

# Class, method, name of its region, and how many forwards it stands for, given its owner and its result.
PHASES: tuple[tuple[type, str, Callable[[Any], str], Callable[[Any], int]], ...] = (
    (Speculative, "round", lambda level: LEVEL + level.name, lambda _: 1),
    (DraftModel, "propose", lambda _: LEVEL + "draft", len),
    (NgramLookup, "match", lambda _: LEVEL + "lookup", lambda _: 0),
    (NgramLookup, "find", lambda _: LEVEL + "lookup", lambda _: 0),
    (Planner, "choose", lambda _: LEVEL + "planner", lambda _: 0),
    (Speculative, "_several_rounds", lambda _: LEVEL + "planner", lambda _: 0),
    (SelfAttention, "mixed", lambda _: PART + ATTENTION, lambda _: 0),
    (Sampler, "run", lambda _: PART + SAMPLING, lambda _: 0),
    (RetrievalCache, "on_layer", lambda _: PART + RETRIEVAL, lambda _: 0),
    (RetrievalCache, "on_graph_forward", lambda _: PART + RETRIEVAL, lambda _: 0),
    (InPlaceCache, "on_graph_forward", lambda _: PART + RETRIEVAL, lambda _: 0),
    (InPlaceCache, "_select", lambda _: PART + RETRIEVAL, lambda _: 0),
)


def levels_of(level: Any) -> Iterator[tuple[str, Any]]:
    """A level and all that drafts for it, with their names."""
    if isinstance(level, DraftModel):
        yield "draft", level
        return
    yield level.name, level
    if level.planner.decides:
        yield "planner", level.planner
    if level.planner.lookup is not None:
        yield "lookup", level.planner.lookup
    for arm in level.planner.arms:
        yield from levels_of(arm.drafter)


@contextmanager
def marked() -> Iterator[Counter[str]]:
    """Mark regions of all levels; counts each level's forwards meanwhile."""
    forwards: Counter[str] = Counter()
    with ExitStack() as marks:
        for owner, name, region, count in PHASES:
            call = _region(getattr(owner, name), region, forwards, count)
            marks.enter_context(replaced(owner, name, call))
        marks.enter_context(_attention())
        yield forwards


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _region(
    call: Callable[..., Any],
    region: Callable[[Any], str],
    forwards: Counter[str],
    count: Callable[[Any], int],
) -> Callable[..., Any]:
    """A method as a named region of the profile."""

    @wraps(call)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        name = region(self)
        with record_function(name):
            made = call(self, *arguments, **named)
        if name.startswith(LEVEL):
            forwards[name.removeprefix(LEVEL)] += count(made)
        return made

    return called


@contextmanager
def _attention() -> Iterator[None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    @wraps(attention.attend)
    def attend(*arguments: Any, **named: Any) -> Any:
        with record_function(PART + ATTENTION):
            return attention.attend(*arguments, **named)

    ALL_ATTENTION_FUNCTIONS.register(attention.NAME, attend)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS.register(attention.NAME, attention.attend)
