"""Trees on the real path: the tokens are those of plain decoding, whatever is accepted, interrupted or repeated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.caches import layer_of
from support.head_drafts import with_head_draft
from support.labs import Lab

from triforce_chat.chat.events import Tally
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.engine.tree import Parents, paths, verified
from triforce_chat.errors import UsageError

KINDS = ("sequoia", "specinfer", "auto")
LONG = 42
SHAPE: Parents = (-1, -1, 0, 0, 1, 3, 3)


def treed(lab: Lab, stack: str, kind: str = "sequoia", size: int | None = 10, **options: Any) -> Engine:
    depth = options.pop("depth", 4)
    return lab.engine(stack, tree=TreeOptions(kind, size, depth), **options)


def tally(engine: Engine, request: Request) -> Tally:
    result = Tally()
    for event in engine.answer(request):
        result.add(event)
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
def test_greedy_answers_are_those_of_transformers(any_lab: Lab, stack: str, kind: str) -> None:
    for length in (5, 90):
        prompt = any_lab.text(length)
        made = tally(treed(any_lab, stack, kind), Request(prompt, LONG))
        assert made.token_ids == any_lab.greedy(prompt, LONG)
        assert made.rounds < LONG


@pytest.mark.parametrize("size", [1, 2, 40, None])
def test_planned_sizes(lab: Lab, size: int | None) -> None:
    prompt = lab.text(70, seed=3)
    engine = treed(lab, "naive", "auto", size, depth=None)
    for n in (LONG, 90):
        expected = lab.greedy(prompt, n)
        assert tally(engine, Request(prompt, n)).token_ids == expected
        prompt = [*prompt, *expected, 5]


def test_a_tree_accepts_more_than_its_first_branch(lab: Lab) -> None:
    prompt = lab.text(90)
    chain, tree = (treed(lab, "naive", "sequoia", size, depth=3) for size in (3, 24))
    for engine in (chain, tree):
        engine.top.planner.lookup = None
    narrow, wide = (tally(engine, Request(prompt, LONG)) for engine in (chain, tree))
    assert narrow.token_ids == wide.token_ids
    assert wide.rounds < narrow.rounds


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_answers_may_be_interrupted_after_any_event(lab: Lab, stack: str) -> None:
    prompt, engine = lab.text(60), treed(lab, stack)
    expected = lab.greedy(prompt, LONG)
    for stop in (1, 2, 3, 5, 8, 1):
        made: list[int] = []
        events = engine.answer(Request(prompt, LONG))
        for event in events:
            made += event.token_ids if isinstance(event, Text) else []
            if isinstance(event, Text) and len(made) >= stop:
                break
        events.close()
        assert made == expected[: len(made)]
        assert engine.cached == [*prompt, *made][:-1]
    assert tally(engine, Request([*prompt, *expected[:9]], 20)).token_ids == expected[9:29]


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_a_seed_repeats_an_answer_whatever_came_before(lab: Lab, stack: str) -> None:
    options: dict[str, Any] = {"draft_gamma": 4, "gamma": 8, "repeatable": True}
    request = Request(lab.text(60), 30, Sampling(0.9, top_p=0.9, repetition_penalty=1.2, seed=7))
    first, second = (treed(lab, stack, **options) for _ in range(2))
    tally(second, Request(lab.text(30, seed=4), 40))
    assert tally(first, request).token_ids == tally(second, request).token_ids


def test_a_draft_that_reads_the_target_s_state(lab: Lab) -> None:
    reading, prompt = with_head_draft(lab, list(range(0, 48, 2)), strength=1.0), lab.text(60)
    for stack in ("naive", "triforce"):
        assert tally(treed(reading, stack), Request(prompt, LONG)).token_ids == lab.greedy(prompt, LONG)


def test_a_tree_s_rows_are_those_of_its_paths(any_lab: Lab) -> None:
    """Keys, values and queries of a path that is kept are those of a chain, too."""
    target, text, nodes = any_lab.target, any_lab.text(20), any_lab.text(len(SHAPE), seed=9)
    cache = FullCache(target.shape, 64)
    ids = torch.tensor([[*text, *nodes]])
    logits = target(ids, cache, len(SHAPE) + 1, tree=verified(SHAPE, len(text))).clone()
    for node, path in enumerate(paths(SHAPE)):
        alone = any_lab.logits([*text, *(nodes[at] for at in path)])[-1]
        torch.testing.assert_close(logits[0, node + 1], alone, atol=1e-5, rtol=1e-4)
    path = paths(SHAPE)[-1]
    cache.keep(len(text), path)
    chain = FullCache(target.shape, 64)
    target(torch.tensor([[*text, *(nodes[at] for at in path)]]), chain, 1)
    end = len(text) + len(path)
    assert cache.length == chain.length == end
    for mine, theirs in zip(layer_of(cache.storage, 1), layer_of(chain.storage, 1), strict=True):
        torch.testing.assert_close(mine[:, :end], theirs[:, :end], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        cache.queries.latest(0, end, 8), chain.queries.latest(0, end, 8), atol=1e-5, rtol=1e-4
    )


def test_trees_are_drafted_below_the_middle_level(lab: Lab) -> None:
    proposed = [
        event.proposed
        for event in treed(lab, "triforce").answer(Request(lab.text(90), LONG))
        if isinstance(event, Verified) and event.level == "retrieval"
    ]
    assert max(proposed) == 10


def test_what_drafts_no_trees_says_so(lab: Lab) -> None:
    with pytest.raises(UsageError, match="the stack 'auto' drafts chains"):
        treed(lab, "auto")
    with pytest.raises(UsageError, match="tree-size must be from 1 to 63 tokens"):
        treed(lab, "naive", size=64)
    with pytest.raises(UsageError, match="not with --policy attention"):
        treed(lab, "triforce", policy="attention")
    with pytest.raises(UsageError, match="not drafted along a given text"):
        tally(treed(lab, "naive"), Request(lab.text(20), 5, forced=(1, 2)))
    for stack in ("autoregressive", "lookup", "retrieval"):
        prompt = lab.text(40)
        assert tally(treed(lab, stack), Request(prompt, 9)).token_ids == lab.greedy(prompt, 9)
    prompt = lab.text(90)
    for stack in ("naive", "streaming"):  # which select nothing
        made = tally(treed(lab, stack, policy="attention"), Request(prompt, 9))
        assert made.token_ids == lab.greedy(prompt, 9)
