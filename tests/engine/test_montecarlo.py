"""Sampled answers of the real engine against the exact conditionals of stock transformers."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.head_drafts import with_head_draft
from support.labs import Lab
from support.reduced_drafts import with_reduced_draft
from support.rules import middle_draws_from_its_target
from support.toys import CPU, ToyCache, ToyModel, Walk, drafting, fixed_table, nothing, ruled
from torch import Tensor

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Text, Verified
from triforce_chat.engine.sampling.ops import Uniforms, truncate
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.tree_plan import TreeOptions

ALARM = 1e-4
V = 8
TINY = Budget(tokens=14, chunk=2, sinks=2, tail=4, stride=3, scratch=16, queries=2)
PLAIN = Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def small() -> Lab:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16}
    return Lab.of("llama", seed=5, noise=0.5, vocabulary=V, spread=0.5, **sizes)


def chi_square_p(counts: Sequence[float], expected: Sequence[float], lost: int = 1) -> float:
    """Pearson's test; cells that expect fewer than five are merged."""
    pairs = sorted(zip(expected, counts, strict=True))
    cells, e, c = [], 0.0, 0.0
    for want, have in pairs:
        e, c = e + want, c + have
        if e >= 5:
            cells.append((e, c))
            e = c = 0.0
    if cells:
        last_e, last_c = cells.pop()
        cells.append((last_e + e, last_c + c))
    statistic = sum((have - want) ** 2 / want for want, have in cells)
    freedom = len(cells) - lost
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def conditionals(lab: Lab, prompt: Sequence[int], made: Sequence[int], sampling: Sampling) -> Tensor:
    """What the stock model says of every made token: [len(made), V]."""
    logits = lab.logits([*prompt, *made])[len(prompt) - 1 : -1].double()
    return truncate(torch.softmax(logits / sampling.temperature, -1), sampling, V)[0]


def joint(lab: Lab, prompt: Sequence[int], n: int, sampling: Sampling) -> Tensor:
    """Exact law of the first n tokens: [V ** n] in lexicographic order."""
    chance = torch.ones(1, dtype=torch.float64)
    for made in range(n):
        rows = [conditionals(lab, prompt, [*head, 0], sampling)[-1] for head in heads(made)]
        chance = (chance[:, None] * torch.stack(rows)).flatten()
    return chance


def heads(n: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(V), repeat=n))


def sampled(engine: Engine, prompt: Sequence[int], n: int, sampling: Sampling, seed: int) -> list[Event]:
    changed = Sampling(**{**{f: getattr(sampling, f) for f in sampling.__slots__}, "seed": seed})
    return list(engine.answer(Request(prompt, n, changed)))


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


def joint_p(lab: Lab, engine: Engine, runs: int, sampling: Sampling = PLAIN) -> float:
    """P-value of the law of two tokens (64 cells), in answers long enough to draft and rebuild."""
    prompt = lab.text(40, seed=2)
    law = joint(lab, prompt, 2, sampling)
    seen = Counter(tuple(ids_of(sampled(engine, prompt, 4, sampling, seed))[:2]) for seed in range(runs))
    assert all(law[a * V + b] > 0 for a, b in seen)
    return chi_square_p([seen[head] for head in heads(2)], (law * runs).tolist())


def in_turn(planner: Planner, length: int, n: int, match: int, needed: int) -> Plan:  # noqa: ARG001
    turn = planner.rounds % 3
    return Plan(min(n, 3), planner.arms[turn] if turn < 2 else None)


def hierarchy(lab: Lab, name: str = "triforce", draft: bool = True) -> Engine:
    return lab.engine(name, draft=draft, gamma=3, draft_gamma=2, budget=TINY)


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "lookup"])
def test_the_joint_law_of_the_first_tokens(small: Lab, draft: bool) -> None:
    assert joint_p(small, hierarchy(small, draft=draft), 800) > ALARM


@pytest.mark.parametrize("stack", ["triforce", "naive"])
def test_the_joint_law_with_a_draft_of_few_tokens(small: Lab, stack: str) -> None:
    assert joint_p(small, hierarchy(with_reduced_draft(small, [1, 2, 6]), stack), 400) > ALARM


@pytest.mark.parametrize("stack", ["triforce", "naive"])
def test_the_joint_law_with_a_draft_that_reads_states(small: Lab, stack: str) -> None:
    lab = with_head_draft(small, [0, 1, 2, 4, 6, 7], strength=1.0)
    assert joint_p(small, hierarchy(lab, stack), 400) > ALARM


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("stack", ["triforce", "naive"])
def test_the_joint_law_with_trees(small: Lab, stack: str, kind: str) -> None:
    tree = TreeOptions(kind, 6, 3)
    engine = small.engine(stack, gamma=3, draft_gamma=2, budget=replace(TINY, scratch=24), tree=tree)
    assert joint_p(small, engine, 400) > ALARM


def test_the_joint_law_with_a_nucleus(small: Lab) -> None:
    assert joint_p(small, hierarchy(small), 500, Sampling(temperature=0.8, top_p=0.85)) > ALARM


def test_the_published_rule_raises_the_alarm(small: Lab) -> None:
    engine = hierarchy(small)
    middle = engine.top.planner.arms[0].drafter
    assert isinstance(middle, Speculative)
    ruled(middle, middle_draws_from_its_target)
    assert joint_p(small, engine, 800) < ALARM


class Transformed:
    """Randomised probability integral transform of many answers: independent and uniform under the law."""

    def __init__(self) -> None:
        self.luck = torch.Generator().manual_seed(0)
        self.answers: list[list[float]] = []

    def add(self, rows: Tensor, made: Sequence[int]) -> None:
        shares = torch.rand(len(made), generator=self.luck, dtype=torch.float64)
        rows, order = rows.sort(-1, descending=True)  # the likely ones low, so that sharpening shows
        below = rows.cumsum(-1) - rows
        index = (order == torch.tensor(made)[:, None]).long().argmax(-1, keepdim=True)
        assert (rows.gather(1, index) > 0).all()
        inside = below.gather(1, index)[:, 0] + shares * rows.gather(1, index)[:, 0]
        self.answers.append(inside.tolist())

    def p_value(self, bins: int = 8) -> float:
        """Of pairs of neighbours on a grid, and of single values; Bonferroni."""
        pairs = [pair for answer in self.answers for pair in zip(answer[::2], answer[1::2], strict=False)]
        grid = Counter((int(a * bins), int(b * bins)) for a, b in pairs)
        cells = list(itertools.product(range(bins), range(bins)))
        grids = chi_square_p([grid[cell] for cell in cells], [len(pairs) / bins**2] * bins**2)
        values = [value for answer in self.answers for value in answer]
        line = Counter(int(value * 20) for value in values)
        lines = chi_square_p([line[i] for i in range(20)], [len(values) / 20] * 20)
        return min(1.0, 2 * min(grids, lines))


@pytest.mark.parametrize("stack", ["triforce", "streaming", "naive", "auto"])
def test_long_answers_follow_the_conditionals(
    small: Lab, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds, rebuilds and turns one after the other: each token given all before it."""
    monkeypatch.setattr(Planner, "_choose", in_turn)
    engine, test, proposed = hierarchy(small, stack), Transformed(), 0
    for seed in range(50):
        prompt = small.text(20 + seed % 17, seed=seed % 5)
        events = sampled(engine, prompt, 30, PLAIN, seed)
        made = ids_of(events)
        proposed += sum(event.proposed for event in events if isinstance(event, Verified))
        test.add(conditionals(small, prompt, made, PLAIN), made)
    assert proposed > 1000
    assert test.p_value() > ALARM


def test_the_transform_sees_a_wrong_temperature(small: Lab) -> None:
    engine, test, prompt = hierarchy(small, "autoregressive"), Transformed(), small.text(20)
    for seed in range(50):
        made = ids_of(sampled(engine, prompt, 30, Sampling(temperature=0.6), seed))
        test.add(conditionals(small, prompt, made, PLAIN), made)
    assert test.p_value() < ALARM


def test_the_chi_square_tail() -> None:
    # one degree of freedom, statistic 3.8415: five per cent
    d = (3.8415 * 50 / 2) ** 0.5
    assert chi_square_p([50 - d, 50 + d], [50, 50]) == pytest.approx(0.05, abs=1e-4)
    assert chi_square_p([50, 50], [50, 50]) == 1


# Defect D2: rounds must not share their random numbers


P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


class Repeating(Sampler):
    """Uses the first uniforms of each kind again and again, as the defect does."""

    def fill(self, uniforms: Uniforms) -> None:
        super().fill(uniforms)
        if uniforms.tests.numel():
            if not hasattr(self, "once"):
                self.once = uniforms.tests.clone()
            uniforms.tests.copy_(self.once)


def verdicts(kind: type[Sampler], answers: int, rounds: int) -> tuple[list[list[bool]], list[list[int]]]:
    """Acceptances and tokens where every context has the same p and q, so that all rounds are alike."""
    target, draft = ToyModel(3, fixed_table(*P)), ToyModel(3, fixed_table(*Q))
    passed, made = [], []
    for seed in range(answers):
        sampler, seq = kind(Sampling(temperature=1.0, seed=seed)), TokenBuffer.of([0], 200, CPU)
        planner = drafting(DraftModel(draft, ToyCache()), 1)  # type: ignore[arg-type]
        level = Speculative("x", target, ToyCache(), planner, nothing)  # type: ignore[arg-type]
        passed.append([len(level.step(seq, sampler, 1)[1].ids) == 2 for _ in range(rounds)])
        made.append(seq.tokens[1 : rounds + 1].tolist())
    return passed, made


def pair_p(lines: Sequence[Sequence[int]], chances: Sequence[float]) -> float:
    pairs = Counter(pair for line in lines for pair in zip(line[::2], line[1::2], strict=False))
    n = sum(pairs.values())
    cells = list(itertools.product(range(len(chances)), range(len(chances))))
    return chi_square_p([pairs[cell] for cell in cells], [n * chances[a] * chances[b] for a, b in cells])


def test_rounds_are_independent() -> None:
    accept = sum(map(min, P, Q))  # 0.7
    passed, said = verdicts(Sampler, 150, 10)
    assert pair_p(passed, [1 - accept, accept]) > ALARM
    assert pair_p(said, P) > ALARM
    passed, said = verdicts(Repeating, 150, 10)
    assert pair_p(passed, [1 - accept, accept]) < ALARM


def test_every_uniform_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per tested token and one per drawn token, never twice the same."""
    real = torch.rand
    drawn: list[Tensor] = []

    def rand(*arguments: Any, **options: Any) -> Tensor:
        drawn.append(real(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(torch, "rand", rand)
    verdicts(Sampler, 1, 6)
    numbers = [number for tensor in drawn for number in tensor.flatten().tolist()]
    assert len(numbers) == 6 * 3  # drafted, tested, recovered or bonus
    assert len(set(numbers)) == len(numbers)


def test_single_draws_and_acceptances_have_their_chances() -> None:
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0, 6.0, 0.0]])

    def fresh() -> Uniforms:
        uniforms = Uniforms.empty(1, 3, CPU)
        sampler.fill(uniforms)
        return uniforms

    seen = Counter(int(fresh().draw(weights)) for _ in range(4000))
    assert seen.keys() == {1, 2, 4}
    assert chi_square_p([seen[1], seen[2], seen[4]], [400, 1200, 2400]) > ALARM
    p, q = torch.tensor([[0.4, 0.1, 0.3]]), torch.tensor([[0.8, 0.1, 0.9]])
    led = Counter(int(fresh().accepts(p, q)) for _ in range(4000))
    expected = [2000, 0, 2000 * 2 / 3, 2000 / 3]
    assert led[1] == 0
    assert chi_square_p([led[0], led[2], led[3]], [expected[0], *expected[2:]]) > ALARM


def test_the_walk_through_all_outcomes_is_a_distribution() -> None:
    walk = Walk()
    scripts: list[list[int]] = [[]]
    found: defaultdict[int, float] = defaultdict(float)
    p, q = torch.tensor([[0.4, 0.1, 0.3]]), torch.tensor([[0.8, 0.1, 0.9]])
    while scripts:
        walk.begin(scripts.pop())
        found[int(walk.accepts(p, q))] += walk.chance
        scripts += [[*prefix, other] for prefix, other in walk.open]
    assert [round(found[k], 6) for k in range(4)] == [0.5, 0, 0.333333, 0.166667]
