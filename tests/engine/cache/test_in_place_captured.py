"""Lists of slots under CUDA graphs: captured forwards weigh and read as those of a CPU do, layer by layer.

Without a GPU, graphs are emulated, and plain arithmetic stands in for the kernels, which have tests of their own.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import plain_kernels
from support.caches import answer_of, buffer_of, caches, interrupt, told_until_interrupt
from support.emulated_graphs import captured_pair, emulate
from support.judging import sampling_test
from support.labs import SMALL_BUDGET, random_model, spell
from torch import Tensor

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cuda_graph import MARGIN
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions, retrieval_cache

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Weights are summed in 16 bits before they are normalized.
CLOSE: dict[str, Any] = {"rtol": 5e-3, "atol": 1e-3}
CONTEXT = 400
IDS = torch.randint(1, 48, (300,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("triton")
    name: str = request.param
    if name == "cpu":
        plain_kernels.replace(monkeypatch)
        emulate(monkeypatch)
    return name


class Made:
    """A cache over a target's full cache, whose forwards are captured or not, and what it reports."""

    def __init__(self, device: str, captured: bool, monkeypatch: pytest.MonkeyPatch, chunk: int = 4) -> None:
        monkeypatch.setattr(runner_module, "fusible", lambda _: captured)
        torch.manual_seed(11)
        self.target, self.told = Runner(random_model(head_dim=16).to(device)), list[Event]()
        self.full = FullCache(self.target.shape, CONTEXT)
        budget = replace(SMALL_BUDGET, chunk=chunk)
        made = retrieval_cache(self.target, self.full, budget, "attention", self.told.append)
        assert isinstance(made, InPlaceCache)
        assert bool(made.fading) == captured
        self.cache = made

    def verify(self, end: int, n: int, drafted: int | None = None) -> None:
        """Feed tokens up to ``end``: the last n are a verification, of which the last ``n - 1 - drafted`` fill up."""
        device = self.target.device
        if len(fed := self.full.pending(IDS[: end - n].to(device))):
            self.target.prefill(fed, self.full)
        if drafted is not None:
            self.full.drafted(1, torch.tensor([drafted], device=device))
        self.target(IDS[None, end - n : end].to(device), self.full, n)

    def truncate(self, length: int) -> None:
        for each in (self.full, self.cache):
            each.truncate(length)

    def middle(self, fed: list[int]) -> Tensor:
        """Logits after tokens that the middle level is fed behind what was verified."""
        ids = torch.tensor([fed], device=self.target.device)
        return self.target(ids, self.cache, len(fed))[0].clone().cpu()


def both(device: str, monkeypatch: pytest.MonkeyPatch, chunk: int = 4) -> tuple[Made, Made]:
    """With captured forwards on the device, and layer by layer on the CPU."""
    return Made(device, True, monkeypatch, chunk), Made("cpu", False, monkeypatch, chunk)


def begun(device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Made, Made]:
    """Both after a first verification that was asked for."""
    pair = both(device, monkeypatch)
    for made in pair:
        made.verify(147, 1)
        assert made.cache.ready(1)
        made.verify(150, 3)
    same(*pair)
    return pair


def same(mine: Made, other: Made) -> None:
    """Both have weighed alike, and list the same slots."""
    assert mine.cache.ready(3)
    assert other.cache.ready(3)
    torch.testing.assert_close(mine.cache.mass.cpu(), other.cache.mass, **CLOSE)
    assert mine.cache.layout == other.cache.layout
    read = other.cache._read(other.full.length)
    assert torch.equal(mine.cache.slots[..., :read].cpu(), other.cache.slots[..., :read])


@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_verifications_weigh_and_select_as_on_a_cpu(
    device: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In graphs that are captured at their first use and used again, with rows that fill them up."""
    pair = both(device, monkeypatch, chunk)
    for made in pair:
        assert not made.cache.ready(1)
        made.verify(150, 3)
    same(*pair)
    for end, n, kept in ((157, 7, 153), (160, 7, 158), (166, 8, 166), (166 + 1, 1, 167)):
        for made in pair:
            made.verify(end, n)
            made.truncate(kept)
        same(*pair)
    found = {tuple(row) for row in pair[1].cache.slots[..., :24].flatten(0, 1).tolist()}
    assert len(found) > 1


def test_tokens_that_fill_a_draft_up_weigh_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a draft whose length the device alone knows, the CPU is given what counts."""
    mine, other = begun(device, monkeypatch)
    mine.verify(157, 7, drafted=3)
    mine.truncate(154)
    other.verify(154, 4)
    same(mine, other)
    for made in (mine, other):  # the count was that of one forward
        made.verify(158, 4)
    same(mine, other)


def test_the_middle_level_reads_the_lists(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = begun(device, monkeypatch)
    before = buffer_of(mine.full).keys[:, :, :150].clone()
    for fed in ([5, 6, 7], [8], [9, 10, 11, 12, 13]):  # the last one in a graph of the same size
        torch.testing.assert_close(mine.middle(fed), other.middle(fed), rtol=1e-3, atol=1e-3)
    assert mine.cache.length == 159
    assert torch.equal(buffer_of(mine.full).keys[:, :, :150], before)
    keys = [buffer_of(made.full).keys[:, :, 150:159].cpu() for made in (mine, other)]
    torch.testing.assert_close(*keys, rtol=1e-3, atol=1e-3)


def test_a_forward_may_begin_where_the_host_does_not_know(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = begun(device, monkeypatch)
    expected = [other.middle(each) for each in ([5, 6, 7], [8, 9])]
    for at, ids, wanted in zip((0, 3), ([5, 6, 7], [8, 9]), expected, strict=True):
        fed = torch.tensor([ids], device=mine.target.device)
        offset = torch.tensor([at], device=mine.target.device)
        found = mine.target(fed, mine.cache, len(ids), offset)[0]
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)
    assert mine.cache.length == 150


def test_captures_ahead_disturb_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before anything is selected nor after; neither what was verified nor what was weighed."""
    mine, other = both(device, monkeypatch)
    mine.target.prefill(IDS[:100].to(device), mine.full)
    for rows in (3, 8):
        kept = buffer_of(mine.full).keys[:, :, : mine.full.length].clone()
        for cache in (mine.full, mine.cache):
            [prepare] = mine.target.unprepared(cache, rows)
            prepare()
            assert not mine.target.unprepared(cache, rows)
        for prepare in mine.full.preparations():
            prepare()
        assert torch.equal(buffer_of(mine.full).keys[:, :, : mine.full.length], kept)
        if rows == 3:
            assert not mine.cache.mass.any()
            assert mine.cache.ready(1)
            mine.verify(150, 3)
            assert mine.cache.ready(1)
    other.cache.ready(1)
    other.full.queries.forget()
    for made in (mine, other):
        made.cache.restart()
        made.truncate(100)
        made.full.queries.forget()
        made.cache.ready(1)
        made.verify(150, 3)
    same(mine, other)


def test_a_rewind_to_before_all_that_was_weighed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = both(device, monkeypatch)
    for made in pair:
        made.cache.ready(1)
        made.verify(150, 6)
        made.truncate(147)
    same(*pair)
    for made in pair:
        made.cache.ready(1)
        made.verify(152, 5)
        made.truncate(60)
        assert not made.cache.ready(1)  # the queries there are known no longer
        made.verify(61, 1)
    same(*pair)
    assert [event.reason for event in pair[0].told if isinstance(event, Rebuilt)] == ["first", "rewind"]


def test_there_is_no_graph_without_room(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list ends before the full cache does, or the other way round."""
    mine = Made(device, True, monkeypatch)
    mine.cache.ready(1)
    mine.verify(150, 3)
    assert mine.cache.ready(1)
    slot = mine.cache.write_slot()
    assert slot
    assert slot.room == mine.cache.budget.capacity - mine.cache._read(150)
    end = CONTEXT - MARGIN
    assert slot._replace(start=end).room == MARGIN
    mine.cache.length = 149  # of a verified token
    assert mine.cache.write_slot() is None
    with pytest.raises(ValueError, match="slot 149 of 150"):
        mine.middle([5])


def test_graphs_that_weigh_serve_the_next_stack(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read lists go with the cache of lists, and those that weigh with the full cache."""
    mine = Made(device, True, monkeypatch)

    def sizes() -> list[list[int]]:
        return sorted(sorted(made) for made in mine.target.graphs.made.values())

    def selected(end: int) -> None:
        mine.cache.ready(1)
        mine.verify(end, 3)
        assert mine.cache.ready(3)

    selected(150)
    mine.middle([5, 6])
    assert sizes() == [[2], [3]]
    budget = mine.cache.budget
    del mine.cache
    gc.collect()
    assert sizes() == [[3]]
    mine.verify(153, 3)  # which nobody weighs
    assert sizes() == [[3], [3]]
    mine.cache = InPlaceCache(mine.full, budget, mine.told.append, captured=True)
    selected(156)
    assert sizes() == [[3], [3]]
    other = replace(budget, chunk=2)
    mine.cache = InPlaceCache(mine.full, other, mine.told.append, captured=True)
    gc.collect()
    selected(159)
    assert sizes() == [[3], [3]]  # those that weighed other chunks went with their mass


@pytest.mark.parametrize("chunk", [3, 32])
def test_other_chunks_are_copied(device: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(device, True, monkeypatch)
    budget = replace(SMALL_BUDGET, chunk=chunk)
    cache = retrieval_cache(made.target, made.full, budget, "attention", lambda _: None)
    assert isinstance(cache, RetrievalCache)


# In an engine


def engine_of(pair: tuple[Runner, Runner], stack: str = "triforce", chunk: int = 4, **options: Any) -> Engine:
    given = {"gamma": 5, "draft_gamma": 2, "policy": "attention", **options}
    chosen = StackOptions(name=stack, budget=replace(SMALL_BUDGET, chunk=chunk), **given)
    return Engine(pair[0], 700, TextCodec(spell), pair[1], chosen)


def check_source(engine: Engine) -> None:
    """The full cache holds what a prefill at once gives, whatever the middle level wrote behind it."""
    n = min(engine.full.length, len(engine.cached))
    if not n:
        return
    fresh = FullCache(engine.target.shape, n + 64)
    engine.target.prefill(torch.tensor(engine.cached[:n], device=engine.target.device), fresh)
    mine, other = buffer_of(engine.full), buffer_of(fresh)
    for have, want in ((mine.keys, other.keys), (mine.values, other.values)):
        torch.testing.assert_close(have[:, :, :n], want[:, :, :n], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "auto"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_turns_with_rewinds_stay_greedy(
    device: str, stack: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = captured_pair(device, monkeypatch)
    plain = engine_of(pair, "autoregressive")
    engine = engine_of(pair, stack, chunk)
    assert caches(engine, InPlaceCache)
    assert not caches(engine, RetrievalCache)
    prompt = IDS[:80].tolist()
    for turn, cut in enumerate((0, 9, 40, 0)):
        answer = answer_of(engine, prompt, 24)
        assert answer == answer_of(plain, prompt, 24)
        check_source(engine)
        prompt = [*prompt, *answer][: len(prompt) + 24 - cut] + IDS[turn : turn + 4].tolist()
    if stack == "triforce":
        [cache] = caches(engine, InPlaceCache)
        assert cache.selected
        assert cache.layout.chunks


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_planned_drafts(device: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's own lengths: some verifications are larger than any graph of the middle level."""
    pair = captured_pair(device, monkeypatch)
    engine = engine_of(pair, gamma=None, draft_gamma=None)
    sampling = Sampling(temperature=temperature)
    for length in (60, 90, 200):
        request = Request(IDS[:length].tolist(), 50, sampling)
        told = tokens_of(engine, request)
        assert len(told) == 50
        if not temperature:
            assert told == tokens_of(engine_of(pair, "autoregressive"), request)
        check_source(engine)


def test_an_eight_bit_middle_level_reads_the_same_lists(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = captured_pair(device, monkeypatch)
    request = Request(IDS[:90].tolist(), 40)
    told = tokens_of(engine_of(pair, middle="int8"), request)
    assert told == tokens_of(engine_of(pair, "autoregressive"), request)


@pytest.mark.gpu
def test_samples_follow_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(captured_pair("cuda", monkeypatch))
    request = Request(IDS[:90].tolist(), 100, Sampling(temperature=1.0, top_p=0.9))
    assert sampling_test(engine, request, range(6)).p_value > 1e-4


STEPS = (
    "_begin",
    "_weigh_latest",
    "_add_by_kernels",
    "on_graph_forward",
    "on_forward",
    "_select",
    "_fill",
    "truncate",
    "write_slot",
)


@pytest.mark.parametrize("method", STEPS)
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_any_step(
    device: str, method: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a captured verification and its selection too; the next answer is right."""
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 16)
    pair = captured_pair(device, monkeypatch)
    plain, engine, prompt = engine_of(pair, "autoregressive"), engine_of(pair), IDS[:90].tolist()
    for call in (1, 2, 5):
        with monkeypatch.context() as patch:
            interrupt(patch, [(InPlaceCache, method)], call, late)
            told, broke = told_until_interrupt(engine, Request(prompt, 30))
        assert broke or method in ("_weigh_latest", "_add_by_kernels")  # which a later answer does without
        check_source(engine)
        prompt = [*told, 3]
        assert answer_of(engine, prompt, 9) == answer_of(plain, prompt, 9)
        check_source(engine)
        engine.top.rollback(50)
        del engine.cached[50:]
