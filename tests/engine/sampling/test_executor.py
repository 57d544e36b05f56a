"""What is replayed says what is computed directly, to the last bit and with the same random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engine.speculation.test_reads import WARPS, Blind, Reads
from support.emulated_graphs import captured_pair, emulate
from support.labs import SMALL_BUDGET, spell
from support.no_sync import no_waits
from support.toys import ToyCache, nothing
from torch import Tensor

from triforce_chat.engine.cuda_graph import SIZES, USUAL
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SingleRank
from triforce_chat.engine.host_copy import Message
from triforce_chat.engine.sampling import executor as replays_module
from triforce_chat.engine.sampling import sampler as sampling_module
from triforce_chat.engine.sampling.executor import DIRECT, Chances, Replays
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.async_decoder import Ahead
from triforce_chat.engine.speculation.level import Autoregressive, Level, Silent, Speculative
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.verify import verify

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STACKS = ("ahead", "autoregressive", "triforce", "retrieval", "streaming", "naive", "lookup")
LAWS = {
    "greedy": Sampling(seed=1),
    "greedy penalty": Sampling(repetition_penalty=1.3, seed=2),
    "top-p": Sampling(0.6, top_p=0.9, seed=3),
    "default": Sampling(0.6, top_p=0.95, repetition_penalty=1.1, seed=4),
    "everything": Sampling(1.1, top_k=30, top_p=0.95, min_p=0.02, repetition_penalty=1.2, seed=5),
}
PROMPT = [int(token) for token in torch.randint(1, 48, (70,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        emulate(monkeypatch)
    return str(request.param)


@pytest.fixture
def pair(device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    return captured_pair(device, monkeypatch)


def engines(pair: tuple[Runner, Runner], stack: str) -> tuple[Engine, Engine]:
    """Direct, and replayed."""
    options = StackOptions("autoregressive" if stack == "ahead" else stack, 5, 2, budget=SMALL_BUDGET)
    both = tuple(Engine(pair[0], 400, TextCodec(spell), pair[1], options) for _ in range(2))
    for engine, desks in zip(both, (DIRECT, Replays()), strict=True):
        engine.desks = desks
        one, emit = ("target", engine.target, engine.full), engine.pending.append
        if stack in ("ahead", "autoregressive"):
            plain = Speculative(*one, Silent(engine.target), 1, emit)
            engine.top = Ahead(*one, emit) if stack == "ahead" else plain
    return both  # type: ignore[return-value]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("stack", STACKS)
def test_answers_are_the_same(pair: tuple[Runner, Runner], stack: str, law: str) -> None:
    said = []
    for engine in engines(pair, stack):
        prompt, made = PROMPT, []
        for n in (50, 20):
            made.append(tokens_of(engine, Request(prompt, n, LAWS[law])))
            prompt = [*prompt, *made[-1], 7, 8, 9]
        said.append(made)
    assert said[0] == said[1]


def test_the_engine_of_a_gpu_replays(pair: tuple[Runner, Runner]) -> None:
    engine = Engine(pair[0], 100, TextCodec(spell))
    assert isinstance(engine.desks, Replays) == (engine.target.device.type == "cuda")


@pytest.mark.parametrize("seed", range(4))
def test_a_nucleus_that_was_too_narrow(
    pair: tuple[Runner, Runner], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module.Nucleus.__init__, "__defaults__", (1,))
    monkeypatch.setattr(sampling_module, "WIDER", 2)
    for stack in ("naive", "ahead"):
        both = engines(pair, stack)
        request = Request(PROMPT, 25, Sampling(temperature=1.5, top_p=0.95, seed=seed))
        assert tokens_of(both[0], request) == tokens_of(both[1], request)
        widths = {key[0][2] for key in both[1].desks.made}  # type: ignore[attr-defined, index]
        assert len(widths) > 2


def test_an_answer_that_outgrows_its_room(
    pair: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays_module, "LEAST_ROOM", 2)
    both = engines(pair, "triforce")
    request = Request(PROMPT, 60, LAWS["default"])
    assert tokens_of(both[0], request) == tokens_of(both[1], request)
    rooms = {key[-1] for key in both[1].desks.made}  # type: ignore[attr-defined, index]
    assert rooms - {128} == {2, 8, 16, 32, 64}  # each for all that a proposal may make, so 4 is passed over


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("law", LAWS)
def test_draws_and_verdicts_of_a_real_vocabulary(device: str, law: str, dtype: torch.dtype) -> None:
    """Probabilities of drafts and histories of every length, where candidates must be sought; on a CPU bit by bit."""
    vocabulary, replays = 9000, Replays()
    generator = torch.Generator().manual_seed(1)
    samplers = [Sampler(LAWS[law], 3, desks=desks) for desks in (DIRECT, replays)]
    for n in (6, 3, 1, 8, 0, 2, 6, 24, 41):
        logits = (6 * torch.randn(n + 1, vocabulary, generator=generator)).to(device, dtype)
        probs = torch.softmax(2 * torch.randn(n, vocabulary, generator=generator), -1).to(device)
        ids = torch.randint(0, vocabulary, (9 + n,), generator=generator).to(device)
        ids[9:] = logits[:n].argmax(-1)
        results = []
        for sampler in samplers:
            drawn = sampler.next(logits[:1], ids)
            results.append([each.clone() for each in drawn])
            drawn = sampler.judge(verify, Draft(ids[9:], probs), logits, ids)
            said = drawn.word[: int(drawn.word[0]) + 2]  # without what has no meaning
            results[-1] += [drawn.probs[: n + 1].clone(), said.clone(), drawn.word[-1:].clone()]
        for direct, replayed in zip(*results, strict=True):
            # A GPU sums up the rows of a larger desk in another order.
            assert torch.equal(direct, replayed) if device == "cpu" else torch.allclose(direct, replayed)
        assert torch.equal(*(sampler.state for sampler in samplers))


def test_one_graph_serves_all_answers_of_a_law(pair: tuple[Runner, Runner]) -> None:
    engine: Any = engines(pair, "ahead")[1]
    for temperature, graphs in ((0.8, 1), (0.9, 2)):
        for seed in range(3):
            tokens_of(engine, Request(PROMPT, 24, Sampling(temperature, seed=seed)))
            assert len(engine.desks.made) == graphs


@pytest.mark.parametrize("law", LAWS)
def test_what_is_left_of_a_longer_draft_is_not_judged(law: str) -> None:
    """It would pass, and take from what comes behind a shorter one."""
    generator, replays = torch.Generator().manual_seed(2), Replays()
    samplers = [Sampler(LAWS[law], 3, desks=desks) for desks in (DIRECT, replays)]
    logits = torch.randn(8, 50, generator=generator)
    logits[range(8), range(10, 18)] = 5
    probs, ids = torch.full((7, 50), 0.02), torch.tensor([1, 2, 3, 30, 31, *range(10, 17)])
    for n in (7, 6, 7, 6, 5, 6, 5):
        draft, history = Draft(ids[5 : 5 + n], probs[:n]), ids[: 5 + n]
        direct, replayed = (each.judge(verify, draft, logits[: n + 1], history) for each in samplers)
        assert int(replayed.word[0]) == n
        assert replayed.word[: n + 2].tolist() == direct.word[:-1].tolist()
        assert torch.equal(replayed.probs[: n + 1], direct.probs)
        assert all(torch.equal(row, direct.probs[-1]) for row in replayed.probs[n + 1 :])


def test_drafts_of_all_usual_lengths_are_captured_with_the_first(device: str) -> None:
    replays = Replays()
    sampler, ids = Sampler(Sampling(1.0), desks=replays), torch.ones(60, dtype=torch.long, device=device)

    def captured(n: int) -> int:
        draft = Draft(ids[:n], torch.full((n, 9), 1 / 9, device=device))
        sampler.judge(verify, draft, torch.zeros(n + 1, 9, device=device), ids)
        return sum(
            each.graph.captured is not None for kind in replays.made.values() for each in kind.values()
        )

    assert captured(0) == 1
    first = captured(2)
    assert {captured(n) for n in range(USUAL)} == {first}
    assert captured(USUAL) == captured(USUAL + 1) == first + 1
    assert captured(SIZES[-1]) == first + 2


def test_graphs_that_nobody_uses_go(device: str) -> None:
    replays = Replays(most=2 * 72)  # 9 logits and probabilities of 4 bytes each
    for temperature in (1.0, 2.0, 1.0, 3.0):
        sampler = Sampler(Sampling(temperature), desks=replays)
        sampler.next(torch.zeros(1, 9, device=device), torch.tensor([1], device=device))
    assert [key[0][1].temperature for key in replays.made] == [1.0, 3.0]  # type: ignore[index]


def test_random_numbers_are_those_of_fresh_tensors() -> None:
    """So seeds mean what they meant."""
    sampler, generator = Sampler(Sampling(1.0, seed=6)), torch.Generator().manual_seed(6)
    chances = sampler.roll(Chances.blank(5, torch.device("cpu")))
    assert torch.equal(chances.tests, torch.rand(5, generator=generator))
    assert torch.equal(chances.last, torch.rand(1, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("warp", WARPS)
def test_a_round_of_replays_reads_once(warp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    level, sampler = over_a_draft("cpu"), Sampler(WARPS[warp], 2, desks=Replays())
    tokens = torch.tensor([3, 4, 3, 5])
    for _ in range(3):
        with Reads() as reads:
            made = level.step(tokens, sampler, 4)
        assert reads.count == 1
        assert made.ids == made.tokens.tolist()
        tokens = torch.cat([tokens, made.tokens])


def over_a_draft(device: str) -> Speculative:
    drafter: Level = Autoregressive(Blind(1, device), ToyCache())
    return Speculative("x", Blind(device=device), ToyCache(), drafter, 4, nothing)


@pytest.mark.gpu
@pytest.mark.parametrize("warp", WARPS)
def test_replays_wait_for_one_message_a_round(warp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    class Read(Message):
        def read(self) -> list[int]:
            reads.append(self)
            return super().read()

    monkeypatch.setattr(sampling_module, "Message", Read)
    level, sampler = over_a_draft("cuda"), Sampler(WARPS[warp], 2, desks=Replays())
    tokens = torch.tensor([3, 4, 3, 5], device="cuda")
    level.step(tokens, sampler, 4)  # captures
    level.rollback(0)
    reads.clear()
    with no_waits():
        made = level.drafter.propose(tokens, 5, sampler)
        level.drafter.rollback(0)
        level.step(tokens, sampler, 4)
    assert len(made) == 5
    assert len(reads) == 1


class Doubting(SingleRank):
    """Rank 0 has found a nucleus cut short where this rank has not."""

    size = 2
    words = 0

    def broadcast(self, own: Tensor) -> Tensor:
        told = own.clone()
        told[-1] = self.words
        self.words += 1
        return told


def test_rank_0_says_whether_a_nucleus_was_whole() -> None:
    group = Doubting()
    level: Any = Speculative("x", Blind(), ToyCache(), Silent(Blind()), 1, nothing, group)
    sampler = Sampler(replace(WARPS["top-p"], top_p=0.5))
    width = sampler.nucleus.width
    assert len(level.step(torch.tensor([3, 4]), sampler, 1)) == 1
    assert group.words == 2
    assert sampler.nucleus.width == width * sampling_module.WIDER
