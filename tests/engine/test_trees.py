"""Trees on the real path: the tokens are those of plain decoding, whatever is accepted, interrupted or repeated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.caches import layer_of
from support.emulated_graphs import captured_pair, emulate
from support.head_drafts import with_head_draft
from support.labs import SMALL_BUDGET, Lab, spell
from support.no_sync import no_waits

from triforce_chat.chat.events import Tally
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stack_specs import MAX_DEPTH
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.engine.tree import Parents, paths, verified
from triforce_chat.errors import UsageError

KINDS = ("sequoia", "specinfer", "auto")
LONG = 42
TEXT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]
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


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
def test_large_trees(lab: Lab, stack: str, kind: str) -> None:
    for size, depth in ((80, 20), (150, 8)):
        prompt = lab.text(90)
        engine = treed(lab, stack, kind, size, depth=depth, budget=Budget(tokens=128))
        rounds = [event for event in engine.answer(Request(prompt, 300)) if isinstance(event, Verified)]
        assert max(event.proposed for event in rounds) > 64
        assert tally(engine, Request(prompt, 200)).token_ids == lab.greedy(prompt, 200)


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
def test_a_draft_that_is_right_goes_on_to_the_greatest_depth(lab: Lab, kind: str) -> None:
    options = StackOptions("naive", tree=TreeOptions(kind, 96, MAX_DEPTH))
    engine = Engine(lab.target, 400, TextCodec(spell), lab.target, options)
    rounds = [event for event in engine.answer(Request(lab.text(60), 330)) if isinstance(event, Verified)]
    assert max(event.accepted for event in rounds) >= MAX_DEPTH


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
    cache.keep(len(text), torch.tensor(path))
    chain = FullCache(target.shape, 64)
    target(torch.tensor([[*text, *(nodes[at] for at in path)]]), chain, 1)
    end = len(text) + len(path)
    assert cache.length == chain.length == end
    for mine, theirs in zip(layer_of(cache.storage, 1), layer_of(chain.storage, 1), strict=True):
        torch.testing.assert_close(mine[:, :end], theirs[:, :end], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        cache.queries.latest(0, end, 8), chain.queries.latest(0, end, 8), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_a_given_text_comes_out(lab: Lab, stack: str, kind: str, temperature: float) -> None:
    prompt, sampling = lab.text(60), Sampling(temperature, seed=4)
    text = tokens_of(lab.engine("autoregressive"), Request(prompt, 60, sampling))
    engine = treed(lab, stack, kind)
    made = tally(engine, Request(prompt, 80, sampling, forced=text))
    assert made.token_ids[:60] == text
    assert len(made.token_ids) == 80  # what follows is free
    assert made.rounds < 80


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
    with pytest.raises(UsageError, match="tree-size must be from 1 to 512 tokens"):
        treed(lab, "naive", size=513)
    with pytest.raises(UsageError, match="tree-depth must be from 1 to 32 tokens"):
        treed(lab, "naive", depth=33)
    with pytest.raises(UsageError, match="not with --policy attention"):
        treed(lab, "triforce", policy="attention")
    for stack in ("autoregressive", "lookup", "retrieval"):
        prompt = lab.text(40)
        assert tally(treed(lab, stack), Request(prompt, 9)).token_ids == lab.greedy(prompt, 9)
    prompt = lab.text(90)
    for stack in ("naive", "streaming"):  # which select nothing
        made = tally(treed(lab, stack, policy="attention"), Request(prompt, 9))
        assert made.token_ids == lab.greedy(prompt, 9)


# Where forwards are captured, as on a GPU


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    """A target and a draft whose forwards are captured."""
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def captured(
    pair: tuple[Runner, Runner], name: str, tree: TreeOptions | None, storage: Any = KVBuffer, **options: Any
) -> Engine:
    options = {"budget": SMALL_BUDGET, **options}
    made = StackOptions(name, tree=tree, **options)
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1], made, storage=storage)
    engine.executor = GraphExecutor()
    return engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_captured_trees_decode_what_plain_decoding_does(
    pair: tuple[Runner, Runner], stack: str, kind: str, penalty: float
) -> None:
    engine = captured(pair, stack, TreeOptions(kind, 10, 4), gamma=5)
    for n in (60, 25):
        request = Request(TEXT[:n], 50, Sampling(repetition_penalty=penalty))
        made = tally(engine, request)
        assert made.token_ids == tokens_of(captured(pair, "autoregressive", None), request)
        assert made.rounds < 50  # fewer than tokens


@pytest.mark.parametrize(("kind", "size", "depth"), [("sequoia", 150, 9), ("specinfer", 128, 4)])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_large_captured_trees(
    pair: tuple[Runner, Runner], stack: str, kind: str, size: int, depth: int
) -> None:
    """Up to the last token of the context, behind which a whole tree has no room."""
    engine = captured(pair, stack, TreeOptions(kind, size, depth), gamma=5, budget=Budget(tokens=128))
    for prompt, n in ((TEXT[:60], 340), (TEXT[:25], 80)):
        request = Request(prompt, n)
        events = list(engine.answer(request))
        assert max(event.proposed for event in events if isinstance(event, Verified)) == size
        made = [token for event in events if isinstance(event, Text) for token in event.token_ids]
        assert made == tokens_of(captured(pair, "autoregressive", None), request)
    assert tally(engine, request).token_ids == made


def test_a_large_tree_has_room_behind_the_context(pair: tuple[Runner, Runner]) -> None:
    """From the first round to the last, in a context that is no longer than prompt and answer."""
    options = StackOptions("naive", tree=TreeOptions("sequoia", 200, 6))
    engine = Engine(pair[0], 100, TextCodec(spell), pair[1], options)
    engine.executor = GraphExecutor()
    rounds = [event for event in engine.answer(Request(TEXT[:60], 40)) if isinstance(event, Verified)]
    assert {event.proposed for event in rounds} == {200}


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
def test_a_captured_draft_that_is_right_goes_on_to_the_greatest_depth(
    pair: tuple[Runner, Runner], kind: str
) -> None:
    engine = captured((pair[0], pair[0]), "naive", TreeOptions(kind, 96, MAX_DEPTH))
    rounds = [event for event in engine.answer(Request(TEXT, 300)) if isinstance(event, Verified)]
    assert max(event.accepted for event in rounds) == MAX_DEPTH
    request = Request([*TEXT, 7], 60)
    assert tally(engine, request).token_ids == tokens_of(captured(pair, "autoregressive", None), request)


@pytest.mark.parametrize("kind", KINDS)
def test_captured_trees_below_a_target_with_keys_and_values_in_host_memory(
    pair: tuple[Runner, Runner], kind: str
) -> None:
    engine = captured(pair, "triforce", TreeOptions(kind, 10, 4), OffloadedKV, gamma=5)
    request = Request(TEXT[:60], 90)
    made = tally(engine, request)
    assert made.token_ids == tokens_of(captured(pair, "autoregressive", None), request)
    assert made.levels["retrieval"].rounds > made.rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_captured_trees_of_the_target_itself_pass_whole(
    pair: tuple[Runner, Runner], stack: str, kind: str, temperature: float
) -> None:
    """Every slot, position and distribution is where it belongs, so of each tree a longest path passes."""
    engine = captured((pair[0], pair[0]), stack, TreeOptions(kind, 10, 4), gamma=5, budget=Budget(tokens=512))
    request = Request(TEXT, 120, Sampling(temperature, seed=1))
    rounds = [event for event in engine.answer(request) if isinstance(event, Verified)]
    lowest = [event for event in rounds if event.level == ("target" if stack == "naive" else "retrieval")]
    assert {event.accepted for event in lowest} == {4}
    assert {event.proposed for event in lowest} == {10 if kind == "sequoia" else 8}
    assert all(event.accepted == event.proposed for event in rounds if event not in lowest)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_captured_trees_along_a_given_text(
    pair: tuple[Runner, Runner], stack: str, kind: str, temperature: float
) -> None:
    sampling = Sampling(temperature, seed=4)
    text = tokens_of(captured(pair, "autoregressive", None), Request(TEXT, 60, sampling))
    engine = captured(pair, stack, TreeOptions(kind, 10, 4), gamma=5)
    made = tally(engine, Request(TEXT, 80, sampling, forced=text))
    assert made.token_ids[:60] == text
    assert made.rounds < 80
    same = captured((pair[0], pair[0]), stack, TreeOptions(kind, 10, 4), gamma=5, budget=Budget(tokens=512))
    rounds = [e for e in same.answer(Request(TEXT, 60, sampling, forced=text)) if isinstance(e, Verified)]
    lowest = [e.accepted for e in rounds if e.level == ("target" if stack == "naive" else "retrieval")]
    assert {*lowest} == {4}  # of the target's own drafts all pass, along any text


def test_captured_trees_follow_what_is_learnt(pair: tuple[Runner, Runner]) -> None:
    """Other shapes go through the same graphs, or through larger ones."""
    engine = captured(pair, "naive", TreeOptions("auto"))
    trees = engine.top.planner.trees
    assert trees is not None
    trees.choice.drafts_tree = lambda *_: True  # type: ignore[method-assign]
    for n in range(2):
        request = Request(TEXT[: 40 + n], 200)
        engine.prepare(request)
        assert tally(engine, request).token_ids == tokens_of(captured(pair, "autoregressive", None), request)
    assert trees.verifications > 64
    assert trees.graphs.captured.made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_what_trees_need_is_captured_before_the_answer(
    pair: tuple[Runner, Runner], stack: str, kind: str, penalty: float
) -> None:
    """Whatever is learnt."""
    engine = captured(pair, stack, TreeOptions(kind))
    below: Any = engine.top if stack == "naive" else engine.top.planner.arms[0].drafter
    trees, executor, captures = below.planner.trees, engine.executor, captures_on(engine.target.device)
    assert isinstance(executor, GraphExecutor)

    def made() -> list[set[Any]]:
        """Captured drafts, forwards and verifications of trees."""
        drafts = {key for key, each in trees.graphs.captured.made.items() if each.graph.captured}
        forwards = {(id(owner), n) for owner, sizes in pair[0].graphs.branching.items() for n in sizes}
        verdicts = {(key, n) for key, sizes in executor.made.items() if key[-1][1] for n in sizes}  # type: ignore[index]
        return [drafts, forwards, verdicts]

    for n in (40, 60):
        request = Request(TEXT[:n], 150, Sampling(1.0, repetition_penalty=penalty, seed=n))
        engine.prepare(request)
        before, count = made(), captures.count
        assert all(before)
        tally(engine, request)
        assert made() == before
        assert captures.count - count <= 5  # odd remainders of a window, and the last rounds of chains


@pytest.mark.parametrize("size", [16, 64])
def test_a_tree_s_draft_reads_its_window_again_once_in_a_while(
    pair: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pending, restarts = StreamingCache.pending, []

    def noted(self: StreamingCache, *given: Any) -> torch.Tensor:
        held = self.length
        found = pending(self, *given)
        restarts.extend([held] if self.length < held else [])
        return found

    monkeypatch.setattr(StreamingCache, "pending", noted)
    tree, budget = TreeOptions("sequoia", size, 8), Budget(tokens=512)
    engine = captured(pair, "triforce", tree, gamma=16, budget=budget)
    text = [*TEXT, *TEXT, *TEXT, *TEXT][:290]  # longer than the window
    made = tally(engine, Request(text, 100))
    assert made.levels["retrieval"].rounds > 20
    assert len(restarts) <= 2


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_a_captured_tree_s_round_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, stack: str, temperature: float
) -> None:
    engine = captured(captured_pair("cuda", monkeypatch), stack, TreeOptions("sequoia", 10, 4), gamma=5)
    request = Request(TEXT, 60, Sampling(temperature, seed=1))
    tally(engine, request)  # captures
    verify = Speculative._verify

    def unwaited(*given: Any) -> None:
        with no_waits():
            verify(*given)

    monkeypatch.setattr(Speculative, "_verify", unwaited)
    assert tally(engine, Request([*TEXT, 3], 60, request.sampling)).rounds > 3
