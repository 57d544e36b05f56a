"""A replayed graph gives what eager execution gives, to the last bit and with the same random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.emulated_graphs import captured_pair, emulate
from support.host_reads import Blind
from support.labs import SMALL_BUDGET, spell
from support.toys import CPU, ToyCache, nothing
from torch import Tensor

from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SingleRank
from triforce_chat.engine.sampling import executor as executor_module
from triforce_chat.engine.sampling import sampler as sampler_module
from triforce_chat.engine.sampling.executor import (
    FEW_SIZES,
    EagerExecutor,
    Executor,
    GraphExecutor,
    SamplerInputs,
)
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import StackOptions

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STACKS = ("overlapping", "autoregressive", "triforce", "retrieval", "streaming", "naive", "lookup")
SETTINGS = {
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
    """Eager, and replayed."""
    options = StackOptions("autoregressive" if stack == "overlapping" else stack, 5, 2, budget=SMALL_BUDGET)

    def engine(executor: Executor) -> Engine:
        made = Engine(pair[0], 400, TextCodec(spell), pair[1], options)
        made.executor = executor
        if stack in ("overlapping", "autoregressive"):
            made.top.overlap = stack == "overlapping"
        return made

    return engine(EagerExecutor()), engine(GraphExecutor())


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("stack", STACKS)
def test_answers_are_equal(pair: tuple[Runner, Runner], stack: str, settings: str) -> None:
    made = []
    for engine in engines(pair, stack):
        prompt, answers = PROMPT, []
        for n in (50, 20):
            answers.append(tokens_of(engine, Request(prompt, n, SETTINGS[settings])))
            prompt = [*prompt, *answers[-1], 7, 8, 9]
        made.append(answers)
    assert made[0] == made[1]


def test_the_engine_of_a_gpu_replays(pair: tuple[Runner, Runner]) -> None:
    engine = Engine(pair[0], 100, TextCodec(spell))
    assert isinstance(engine.executor, GraphExecutor) == (engine.target.device.type == "cuda")
    if isinstance(engine.executor, GraphExecutor):
        assert engine.executor.sizes == SIZES
        away = Engine(pair[0], 100, TextCodec(spell), storage=OffloadedKV)
        assert away.executor.sizes == FEW_SIZES  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_a_nucleus_that_was_too_narrow(
    pair: tuple[Runner, Runner], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "CANDIDATES", 1)
    monkeypatch.setattr(sampler_module, "WIDER", 2)
    for stack in ("naive", "overlapping"):
        both = engines(pair, stack)
        request = Request(PROMPT, 25, Sampling(temperature=1.5, top_p=0.95, seed=seed))
        assert tokens_of(both[0], request) == tokens_of(both[1], request)
        widths = {key[0].candidates for key in both[1].executor.made}  # type: ignore[attr-defined]
        assert len(widths) > 2


def test_an_answer_that_outgrows_its_room(
    pair: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "LEAST_ROOM", 2)
    both = engines(pair, "triforce")
    request = Request(PROMPT, 60, SETTINGS["default"])
    assert tokens_of(both[0], request) == tokens_of(both[1], request)
    rooms = {key[-2] for key in both[1].executor.made}  # type: ignore[attr-defined]
    # Each for all that a proposal may make, so 4 is passed over, unless a prefill left time to prepare it.
    assert rooms - {128, 4} == {2, 8, 16, 32, 64}


def verdict_of(sampler: Sampler, draft: Draft, logits: Tensor, ids: Tensor) -> list[Tensor]:
    """Everything meaningful of one verdict on a draft with which ``ids`` end."""
    n = len(draft)
    known = len(ids) - n
    seq = TokenBuffer(ids[None], torch.tensor([known], device=ids.device), known)
    probs, packed, _ = sampler.verify(draft, logits[None], seq)
    kept = packed[0, : int(packed[0, 0]) + 1]
    return [probs[:, : n + 1].clone(), kept.clone(), packed[0, -2:].clone()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", SETTINGS)
def test_verdicts_over_a_real_vocabulary(device: str, settings: str, dtype: torch.dtype) -> None:
    """Drafts and histories of every length, where candidates must be searched; on a CPU bit by bit."""
    vocabulary, graphs = 9000, GraphExecutor()
    generator = torch.Generator().manual_seed(1)
    samplers = [Sampler(SETTINGS[settings], 3, executor=each) for each in (EagerExecutor(), graphs)]
    for n in (6, 3, 1, 8, 0, 2, 6, 24, 41):
        logits = (6 * torch.randn(n + 1, vocabulary, generator=generator)).to(device, dtype)
        probs = torch.softmax(2 * torch.randn(n, vocabulary, generator=generator), -1).to(device)
        ids = torch.randint(0, vocabulary, (9 + n,), generator=generator).to(device)
        ids[9:] = logits[:n].argmax(-1)
        draft = Draft(ids[None, 9:], probs[None])
        for eager, replayed in zip(*(verdict_of(each, draft, logits, ids) for each in samplers), strict=True):
            # A GPU sums up the rows of a larger graph in another order.
            assert torch.equal(eager, replayed) if device == "cpu" else torch.allclose(eager, replayed)
        assert torch.equal(*(sampler.state for sampler in samplers))


def test_one_graph_serves_all_answers_of_the_same_settings(pair: tuple[Runner, Runner]) -> None:
    engine: Any = engines(pair, "overlapping")[1]
    for temperature, graphs in ((0.8, 1), (0.9, 2)):
        for seed in range(3):
            tokens_of(engine, Request(PROMPT, 24, Sampling(temperature, seed=seed)))
            assert len(engine.executor.made) == graphs


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_rest_of_a_longer_draft_is_not_judged(settings: str) -> None:
    """It would pass, and take from what comes behind a shorter one."""
    generator = torch.Generator().manual_seed(2)
    samplers = [Sampler(SETTINGS[settings], 3, executor=each) for each in (EagerExecutor(), GraphExecutor())]
    logits = torch.randn(8, 50, generator=generator)
    logits[range(8), range(10, 18)] = 5
    probs, ids = torch.full((7, 50), 0.02), torch.tensor([1, 2, 3, 30, 31, *range(10, 17)])
    for n in (7, 6, 7, 6, 5, 6, 5):
        draft, history = Draft(ids[None, 5 : 5 + n], probs[None, :n]), ids[: 5 + n]
        eager, replayed = (verdict_of(each, draft, logits[: n + 1], history) for each in samplers)
        assert len(replayed[1]) == n + 2
        assert all(torch.equal(one, other) for one, other in zip(eager, replayed, strict=True))


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_sizes_are_captured_ahead_or_at_their_first_use(device: str, penalty: float) -> None:
    graphs = GraphExecutor()
    sampler = Sampler(Sampling(1.0, repetition_penalty=penalty), 3, executor=graphs)
    ids = torch.ones(60, dtype=torch.long, device=device)
    like = SamplerInputs(torch.empty(1, 0, 9, device=device), Draft.empty(9, torch.device(device)), None)

    def captured(n: int = 0) -> int:
        draft = Draft(ids[None, :n], torch.full((1, n, 9), 1 / 9, device=device))
        verdict_of(sampler, draft, torch.zeros(n + 1, 9, device=device), ids)
        return sum(each.graph.captured is not None for kind in graphs.made.values() for each in kind.values())

    assert [captured(n) for n in (0, 2, 2, 6, 7, 8, SIZES[-1])] == [1, 2, 2, 3, 3, 4, 5]
    assert not sampler.unprepared(like, 20, 1)
    assert not sampler.unprepared(like, 20, 8)  # of 7, too
    for prepare in (*sampler.unprepared(like, 20, 20), *sampler.unprepared(like, 20, 20)):
        prepare()
    assert not sampler.unprepared(like, 20, 19)
    assert captured(19) == captured(18) == 6
    assert not EagerExecutor().unprepared(sampler.op, like, 0, 1)


def test_few_sizes_serve_drafts_of_all_lengths(device: str) -> None:
    few = GraphExecutor(FEW_SIZES)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(9, (80,), generator=generator).to(device)
    for n in range(66):
        draft = Draft(ids[None, len(ids) - n :], torch.full((1, n, 9), 1 / 9, device=device))
        logits = torch.rand(n + 1, 9, generator=generator).to(device)
        told = [
            verdict_of(Sampler(Sampling(0.8, seed=5), executor=each), draft, logits, ids)
            for each in (EagerExecutor(), few)
        ]
        assert told[0][1].tolist() == told[1][1].tolist()
        assert torch.allclose(told[0][0], told[1][0], atol=1e-6)
    [kind] = few.made.values()
    assert [*kind] == [*FEW_SIZES, 80]


def test_graphs_that_nobody_uses_go(device: str) -> None:
    graphs = GraphExecutor(most=2 * 72)  # 9 logits and probabilities of 4 bytes each
    nothing_drafted = Draft.empty(9, torch.device(device))
    for temperature in (1.0, 2.0, 1.0, 3.0):
        sampler = Sampler(Sampling(temperature), executor=graphs)
        ids = torch.tensor([1], device=device)
        verdict_of(sampler, nothing_drafted, torch.zeros(1, 9, device=device), ids)
    assert [key[0].sampling.temperature for key in graphs.made] == [1.0, 3.0]  # type: ignore[index]


class Doubting(SingleRank):
    """Rank 0 has found a distribution cut short where this rank has not."""

    size = 2
    verdicts = 0

    def broadcast(self, own: Tensor) -> Tensor:
        packed = own.clone()
        packed[:, -1] = self.verdicts
        self.verdicts += 1
        return packed


def test_rank_0_says_whether_a_distribution_was_cut_short() -> None:
    group = Doubting()
    level = Speculative("x", Blind(), ToyCache(), Planner(), nothing, group)  # type: ignore[arg-type]
    sampler = Sampler(Sampling(0.8, top_p=0.5, seed=1))
    width = sampler.op.candidates
    assert len(level.step(TokenBuffer.of([3, 4], 300, CPU), sampler, 1)[1].ids) == 1
    assert group.verdicts == 2
    assert sampler.op.candidates == width * sampler_module.WIDER
