"""How well a model predicts a long stream while its own cache evicts tokens, for each eviction rule."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from triforce_chat.engine.cache.evicting import EvictingCache
from triforce_chat.engine.cache.eviction import EVICTIONS, STREAMING, Eviction
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.lab.evaluation.perplexity import losses, perplexity
from triforce_chat.lab.machine import finish

WINDOW, RECOMPUTED, FULL = "window", "recomputation", "full"
RULES = (WINDOW, *EVICTIONS, RECOMPUTED)
MEANINGS = {
    WINDOW: "the latest tokens alone, without sinks",
    STREAMING: "sinks and the latest tokens, positions counted inside the cache (StreamingLLM)",
    "h2o": "the tokens with most attention and the latest ones, at their own positions (H2O)",
    "streaming-h2o": "the same, positions counted inside the cache",
    RECOMPUTED: "the latest tokens, read again for every token",
}
GROWTH = 4  # each band of positions ends so many times further than the one before
READ_AGAIN = 3  # times that a window is read to time recomputation
SHARE = 5  # of a prompt one part in so many is kept in the example


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; sizes in tokens."""

    keep: int
    tokens: int
    rules: Sequence[str]
    sample: int = 8  # of so many windows, one is read again
    example: int = 2048  # tokens of a prompt to continue with a fifth of them; 0: none
    continued: int = 64  # tokens of each continuation


@dataclass(frozen=True, slots=True)
class Part:
    """The perplexity of tokens at positions ``start`` .. ``end - 1``."""

    start: int
    end: int
    tokens: int
    perplexity: float


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream under one rule; ``ms_per_token`` of decoding at its end, evictions included."""

    rule: str
    tokens: int
    perplexity: float
    ms_per_token: float
    parts: Sequence[Part]


def rule_of(name: str, keep: int) -> Eviction:
    """The rule of an evicting cache; a window is a streaming cache without sinks. Raises UsageError."""
    rule = Eviction.of(STREAMING if name == WINDOW else name, keep)
    return replace(rule, sinks=0) if name == WINDOW else rule


def streamed(runner: Runner, ids: Sequence[int], name: str, plan: Plan) -> Streamed:
    """Measure one rule."""
    tokens = torch.tensor(ids, dtype=torch.long, device=runner.device)
    if name == RECOMPUTED:
        places, nats, ms = *recomputed(runner, ids, plan), reading_ms(runner, tokens, plan.keep)
    else:
        cache = EvictingCache(runner.shape, rule_of(name, plan.keep), runner.frequencies, 0)
        places, nats = torch.arange(1, len(ids)), fed(runner, tokens, cache)
        ms = decoding_ms(runner, tokens, cache)
    parts = [*banded(places, nats, plan.keep, len(ids))]
    return Streamed(name, len(nats), perplexity(nats), ms, parts)


def fed(runner: Runner, tokens: Tensor, cache: EvictingCache) -> Tensor:
    """The loss of each token but the first, in nats; the cache ends with all tokens but the last."""
    found = []
    while cache.length < len(tokens) - 1:
        cache.make_room()
        start, end = cache.length, min(cache.limit, len(tokens) - 1)
        logits = runner(tokens[start:end][None], cache, end - start)[0].float()
        found.append(cross_entropy(logits, tokens[start + 1 : end + 1], reduction="none"))
    return torch.cat(found).cpu()


def decoding_ms(runner: Runner, tokens: Tensor, cache: EvictingCache) -> float:
    """Milliseconds per token, over as many as lie between two evictions."""
    step = cache.eviction.step
    cache.make_room()
    runner(tokens[-1:][None], cache, 1)  # a GPU may capture it
    finish(runner.device)
    started = time.perf_counter()
    for _ in range(step):
        cache.make_room()
        runner(tokens[-1:][None], cache, 1)
    finish(runner.device)
    return 1000 * (time.perf_counter() - started) / step


def recomputed(runner: Runner, ids: Sequence[int], plan: Plan) -> tuple[Tensor, Tensor]:
    """Positions and losses of tokens whose latest tokens were read again, as many as an evicting cache holds."""
    rule = rule_of(STREAMING, plan.keep)
    cache = FullCache(runner.shape, plan.keep)
    places, nats = [], []
    for end in range(plan.keep, len(ids) + 1, plan.sample * rule.step):
        places.append(torch.arange(end - rule.step, end))
        nats.append(losses(runner, ids[end - plan.keep : end], cache, rule.left))
    return torch.cat(places), torch.cat(nats)


def reading_ms(runner: Runner, tokens: Tensor, keep: int) -> float:
    """Milliseconds that it takes to read a window, which recomputation does for every token."""
    cache, taken = FullCache(runner.shape, keep), []
    for _ in range(READ_AGAIN):
        cache.truncate(0)
        finish(runner.device)
        started = time.perf_counter()
        runner(tokens[-keep:][None], cache, 1)
        finish(runner.device)
        taken.append(1000 * (time.perf_counter() - started))
    return median(taken)


def edges(keep: int, length: int) -> list[int]:
    """Where bands of positions begin, and the end of the last one."""
    found = [0, keep]
    while found[-1] * GROWTH < length:
        found.append(found[-1] * GROWTH)
    return [edge for edge in found if edge < length] + [length]


def banded(places: Tensor, nats: Tensor, keep: int, length: int) -> Iterator[Part]:
    """The perplexity of each band in which there are tokens."""
    for start, end in pairwise(edges(keep, length)):
        inside = nats[(places >= start) & (places < end)]
        if len(inside):
            yield Part(start, end, len(inside), perplexity(inside))


def continuations(runner: Runner, ids: Sequence[int], plan: Plan) -> dict[str, list[int]]:
    """Greedy continuations of a prompt, by the full cache and with a fifth of its tokens under each rule."""
    prompt = torch.tensor(ids[: plan.example], dtype=torch.long, device=runner.device)
    caches: dict[str, FullCache] = {FULL: FullCache(runner.shape, len(prompt) + plan.continued)}
    for name in plan.rules:
        if name != RECOMPUTED:
            rule = rule_of(name, plan.example // SHARE)
            caches[name] = EvictingCache(runner.shape, rule, runner.frequencies, 0)
    return {name: continued(runner, prompt, cache, plan.continued) for name, cache in caches.items()}


def continued(runner: Runner, prompt: Tensor, cache: FullCache, n: int) -> list[int]:
    """The n likeliest tokens after a prompt, one after the other."""
    made: list[int] = []
    while cache.length < len(prompt):
        cache.make_room()
        piece = prompt[cache.length : cache.limit]
        last = runner(piece[None], cache, 1)[0, -1].argmax()
    while len(made) < n:
        made.append(int(last))
        cache.make_room()
        last = runner(last.view(1, 1), cache, 1)[0, -1].argmax()
    return made
