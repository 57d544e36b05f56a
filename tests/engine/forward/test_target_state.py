"""Drafts that read their target's state: which row it is, what they make of it, and that answers stay the target's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import plain_kernels
from support.emulated_graphs import emulate
from support.head_drafts import head_pair, random_head, use_matrices
from support.judging import sampling_test
from support.labs import SMALL_BUDGET, Lab, perturbed, random_model, spell
from torch import Tensor

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.runner import Runner, feed
from triforce_chat.engine.forward.target_state import NEVER, StateReader, TargetState
from triforce_chat.engine.sampling import sampler as sampler_module
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.round import Round
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import StackOptions

WIDE = 48
MOST = [token for token in range(WIDE) if token % 8 != 3]
EVERYTHING = Budget(tokens=512)  # the retrieval cache holds every text here
WARM = Sampling(temperature=1.0, seed=3)
STACKS = ("triforce", "streaming", "naive", "auto")
PLACES = [
    pytest.param("transformers", id="transformers"),
    pytest.param("graphs", id="graphs"),
    pytest.param("cuda", id="cuda", marks=pytest.mark.gpu),
]


class Pair:
    """A target, and a draft that is built on it, on one way of computing forwards."""

    def __init__(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs = place != "transformers"
        if place == "graphs":
            pytest.importorskip("triton")
            plain_kernels.replace(monkeypatch)
            emulate(monkeypatch)
        monkeypatch.setattr(runner_module, "fusible", lambda _: self.graphs)
        torch.manual_seed(4)
        self.stock = random_model(head_dim=16).to("cuda" if place == "cuda" else "cpu")
        self.target, self.draft = self.made()
        torch.manual_seed(6)
        self.draft_model = perturbed(self.stock, 0.1)  # before its runner packs and merges the weights
        use_matrices(self.draft_model, self.stock, random_head(32), MOST)
        assert self.target.captures == self.draft.captures == self.graphs

    def made(self, noise: float = 0.1, strength: float = 0.1) -> tuple[Runner, Runner]:
        torch.manual_seed(6)
        return head_pair(self.stock, MOST, noise, strength)

    def engine(
        self, name: str, gammas: Any = (4, 2), budget: Budget = SMALL_BUDGET, **options: Any
    ) -> Engine:
        settings = StackOptions(name, gammas[0], gammas[1], budget=budget, **options)
        engine = Engine(self.target, 400, TextCodec(spell), self.draft, settings)
        if self.graphs:
            engine.executor = GraphExecutor()
        return engine

    @torch.no_grad()
    def states(self, ids: Tensor) -> Tensor:
        """What transformers' own forward computes for tokens [n]: [n, H]."""
        out: Tensor = self.stock.base_model(ids[None]).last_hidden_state[0]
        return out


@pytest.fixture(params=PLACES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(request.param, monkeypatch)


def text(n: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, WIDE, (n,), generator=generator).tolist()


@pytest.fixture
def checked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The level and the committed tokens of each verification, after which the state was the right row's."""
    seen: list[tuple[str, int]] = []
    verify = Speculative._verify

    def checking(self: Speculative, seq: TokenBuffer, made: Round, sampler: Sampler) -> None:
        verify(self, seq, made, sampler)
        state, length = pair.target.state, int(seq.length)
        assert state is not None
        assert state.base.tolist() == [length - 1]
        expected = pair.states(seq.ids[0, : length - 1])[-1:]
        torch.testing.assert_close(state.hidden, expected, atol=2e-4, rtol=1e-3)
        seen.append((self.name, int(made.verdict.count)))

    monkeypatch.setattr(Speculative, "_verify", checking)
    return seen


def tokens(events: Iterator[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


@pytest.mark.parametrize("name", ["triforce", "naive"])
def test_the_state_is_that_of_the_row_that_gave_the_newest_token(
    pair: Pair, checked: list[tuple[str, int]], name: str
) -> None:
    """After acceptances of every length, with answers one after the other."""
    engine, prompt = pair.engine(name, budget=EVERYTHING), text(30)
    for seed in range(8):
        said = tokens(engine.answer(Request(prompt, 25, replace(WARM, seed=seed))))
        prompt = [*prompt, *said][: 40 + 2 * seed]
    drafting = {"naive": ("target", 4), "triforce": ("retrieval", 2)}[name]
    counts = {count for level, count in checked if level == drafting[0]}
    assert counts == set(range(1, drafting[1] + 2))
    assert {level for level, _ in checked} == {drafting[0], "target"}


def test_the_state_after_forced_text_and_narrow_nuclei(
    pair: Pair, checked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifications that are repeated with more candidates, and tokens that a benchmark prescribes."""
    monkeypatch.setattr(sampler_module, "CANDIDATES", 2)
    widened: list[Sampler] = []
    widen = Sampler.widen

    def noted(self: Sampler) -> None:
        widened.append(self)
        widen(self)

    monkeypatch.setattr(Sampler, "widen", noted)
    for name in ("triforce", "naive"):
        engine = pair.engine(name, budget=EVERYTHING)
        given = text(20, seed=8)
        request = Request(text(30), 30, Sampling(temperature=1.0, top_p=0.95, seed=1), forced=given)
        assert tokens(engine.answer(request))[:20] == given
    assert widened
    assert checked


def test_the_state_of_plain_decoding_one_token_ahead(pair: Pair, checked: list[tuple[str, int]]) -> None:
    engine = pair.engine("autoregressive")
    engine.top.overlap = True
    assert len(tokens(engine.answer(Request(text(30), 12, WARM)))) == 12
    assert checked == [("target", 1)] * 12


@pytest.mark.parametrize("name", STACKS)
def test_greedy_answers_are_those_of_plain_decoding(pair: Pair, name: str) -> None:
    """Long enough for restarts of the streaming window, with a second answer after a rewound history."""
    for gammas in ((4, 3), (None, None)):
        engine, plain = pair.engine(name, gammas), pair.engine("autoregressive")
        said = None
        for prompt, n in ((text(90), 60), (text(40), 40)):
            events = list(engine.answer(Request(prompt, n)))
            said = tokens(iter(events))
            assert said == tokens_of(plain, Request(prompt, n))
            if name != "auto":  # whose plans go by the clock
                assert any(event.accepted for event in events if isinstance(event, Verified))
        following = Request([*text(40), *(said or [])[:20], 5], 30)
        assert tokens_of(engine, following) == tokens_of(plain, following)


@pytest.mark.parametrize("name", ["triforce", "naive"])
def test_samples_follow_the_distribution(pair: Pair, name: str) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2)
    test = sampling_test(pair.engine(name), Request(text(60), 60, sampling), range(3))
    assert test.p_value > 1e-4


@pytest.mark.parametrize("name", ["triforce", "naive"])
def test_a_seeded_answer_depends_on_no_earlier_one(pair: Pair, name: str) -> None:
    pair.target, pair.draft = pair.made(noise=0.3, strength=1.0)  # proposals that tell where they are from
    said = []
    for earlier in ([], [text(50)], [text(50, seed=2), text(20)]):
        engine = pair.engine(name, middle="full", repeatable=True)
        for prompt in earlier:
            tokens_of(engine, Request(prompt, 20, WARM))
        said.append(tokens_of(engine, Request(text(50), 30, WARM)))
    assert said[0] == said[1] == said[2]


# What a draft makes of a state


def reference(pair: Pair, ids: list[int], indices: list[int], base: int) -> Tensor:
    """Logits [V] of the draft after ``ids``, which stand at these indices of the history, by transformers alone."""
    reader = pair.draft.reader
    assert reader is not None
    model = pair.draft_model
    rows = model.get_input_embeddings()(pair.draft.embedded(torch.tensor(ids, device=pair.draft.device)))
    for row, index in enumerate(indices):
        if index >= base:
            age = min(index - base, len(reader.ages) - 1)
            rows[row] += reader.state.hidden[0] @ reader.matrix.T + reader.ages[age]
    with torch.no_grad():
        logits = model(inputs_embeds=rows[None]).logits[0, -1:]
    return pair.draft.widened(logits)[0]


def known_state(pair: Pair, base: int) -> TargetState:
    state = pair.target.state
    assert state is not None
    torch.manual_seed(9)
    state.hidden.copy_(torch.randn_like(state.hidden))
    state.base.fill_(base)
    return state


@pytest.mark.parametrize("base", [19, 18, NEVER])
def test_rows_of_a_forward_get_the_state_by_their_index(pair: Pair, base: int) -> None:
    history = torch.tensor(text(26), device=pair.draft.device)
    known_state(pair, base)
    cache = StreamingCache(pair.draft.shape)
    feed(pair.draft, cache, history[:18])
    for end in (20, 21, 22, 26):
        found = pair.draft(cache.pending(history[:end])[None], cache, 1)[0, 0]
        expected = reference(pair, history[:end].tolist(), [*range(end)], base)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("base", [39, 38, NEVER])
def test_a_restart_of_the_window_keeps_the_indices(pair: Pair, base: int) -> None:
    """[4 sinks | 12 latest] of 40 tokens, then two more."""
    history = text(42)
    ids = torch.tensor(history, device=pair.draft.device)
    known_state(pair, base)
    cache = StreamingCache(pair.draft.shape, sinks=4, window=12, hop=7)
    for end in (30, 40, 41, 42):
        found = pair.draft(cache.pending(ids[:end])[None], cache, 1)[0, 0].clone()
    assert cache.start == 28
    indices = [*range(4), *range(28, 42)]
    expected = reference(pair, [history[i] for i in indices], indices, base)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def proposal(pair: Pair, history: list[int], n: int, lengths: tuple[int, ...] = ()) -> Draft:
    drafter = DraftModel(pair.draft, StreamingCache(pair.draft.shape), lengths)
    seq = TokenBuffer.of(history, 64, pair.draft.device)
    executor = GraphExecutor() if pair.graphs else None
    return drafter.propose(seq, n, Sampler(Sampling(), executor=executor))


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("lengths", [(), (1, 2, 4)])
def test_drafts_go_on_from_the_state(pair: Pair, lengths: tuple[int, ...], ahead: int) -> None:
    """By one graph or by several, also where the state is of an earlier token: each row by its age."""
    history = text(20)
    base = len(history) - 1 - ahead
    known_state(pair, base)
    made = proposal(pair, history, 7, lengths).tokens[0].tolist()
    for step in range(7):
        so_far = [*history, *made[:step]]
        assert int(reference(pair, so_far, [*range(len(so_far))], base).argmax()) == made[step]
    known_state(pair, NEVER)
    assert proposal(pair, history, 7, lengths).tokens[0].tolist() != made


def test_a_wider_state_is_read_in_its_first_channels() -> None:
    torch.manual_seed(0)
    matrix, ages = torch.randn(4, 6), torch.randn(3, 4)
    narrow, wide = (TargetState(width, torch.float32, torch.device("cpu")) for width in (6, 9))
    wide.hidden.normal_()
    narrow.hidden.copy_(wide.hidden[:, :6])
    indices = torch.arange(10, 17)
    for state in (narrow, wide):
        state.base.fill_(12)
    found, expected = (StateReader(each, matrix, ages).rows(indices) for each in (wide, narrow))
    torch.testing.assert_close(found, expected)
    assert not found[:2].any()
    told = matrix @ narrow.hidden[0]
    torch.testing.assert_close(found[2:], told + ages[[0, 1, 2, 2, 2]])


def test_a_target_whose_state_nobody_reads_keeps_none(lab: Lab) -> None:
    list(lab.engine().answer(Request(lab.text(30), 9)))
    assert lab.target.state is None
    assert lab.target.last_states is None


def test_eight_bit_copies_leave_their_state_at_the_same_place(pair: Pair) -> None:
    """The middle level's verifications go to the tensors that the draft reads; answers stay the target's."""
    engine = pair.engine("triforce", middle="int8")
    if pair.graphs:
        assert pair.target.quantized is not pair.target
    assert pair.target.quantized.state is pair.target.state
    request = Request(text(90), 60)
    assert tokens_of(engine, request) == tokens_of(pair.engine("autoregressive"), request)
