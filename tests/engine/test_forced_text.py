"""Answers that are forced along a given text: that text comes out, and drafts of it pass as often as in truth."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from support.emulated_graphs import captured_pair, emulate
from support.labs import SMALL_BUDGET, Lab, spell
from support.toys import (
    CPU,
    LONGER,
    PROMPT,
    Branching,
    Context,
    Distribution,
    Stack,
    Walk,
    exact_distribution,
    rounds,
    three_levels,
    toy,
    two_levels,
    unwaited,
    variation,
)
from support.tree_toys import SHAPES, captured_tree_over, tree_below, tree_over, unwaited_tree_below
from torch import Tensor

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import FREE, Draft, TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.executor import EagerExecutor, Executor, GraphExecutor
from triforce_chat.engine.sampling.ops import GREEDY, Uniforms, verify
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.tree import depth_of

PLAIN = Sampling(temperature=1.0)
SETTINGS = {
    "greedy": Sampling(),
    "greedy penalty": Sampling(repetition_penalty=1.3),
    "plain": PLAIN,
    "default": Sampling(0.6, top_p=0.95, repetition_penalty=1.1),
}
ANSWERS = 60  # of which free and forced ones are compared
ERRORS = 5.0  # standard errors that a frequency may be off


# The rule by itself


def distributions(n: int, vocabulary: int, seed: int) -> Tensor:
    """Random distributions [n, V], each without one of the tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, vocabulary, generator=generator)
    logits[range(n), torch.randint(0, vocabulary, (n,), generator=generator)] = float("-inf")
    return torch.softmax(logits, -1)


def verdicts(p: Tensor, q: Tensor, forced: Tensor, seed: int = 0) -> Tensor:
    """Verdicts [B, n+2] on drafts from q [n, V] that were forced along ``forced`` [B, n+1], under p [n+1, V]."""
    rows, n = len(forced), len(q)
    generator = torch.Generator().manual_seed(seed)
    uniforms = Uniforms(
        torch.rand(rows, n, generator=generator),
        torch.rand(rows, 1, generator=generator, dtype=torch.float64),
    )
    draft = Draft(forced[:, :n], q.expand(rows, -1, -1))
    return verify(draft, p.expand(rows, -1, -1), uniforms, forced)


def near(found: Tensor, chance: float) -> bool:
    """Whether the mean of many trials [B] agrees with their chance."""
    error = (max(chance * (1 - chance), 1e-9) / len(found)) ** 0.5
    return bool(abs(float(found.double().mean()) - chance) <= ERRORS * error)


@pytest.mark.parametrize("seed", range(5))
def test_a_given_output_was_accepted_with_the_conditional_probability(seed: int) -> None:
    p, q = distributions(2, 6, seed), distributions(1, 6, seed + 50)
    for y in torch.nonzero(p[0])[:, 0].tolist():
        forced = torch.tensor([[y, 0]]).expand(20_000, 2)
        numbers = verdicts(p, q, forced, seed)
        assert near(numbers[:, 0], min(1.0, float(q[0, y] / p[0, y])))
        assert (numbers[:, 1] == y).all()
        assert (numbers[numbers[:, 0] == 1][:, 2] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_over_all_outputs_a_draft_passes_as_often_as_in_truth(seed: int) -> None:
    """Position by position the chance is the sum of min(p, q), if outputs are drawn from p."""
    p, q, rows = distributions(4, 6, seed), distributions(3, 6, seed + 50), 40_000
    generator = torch.Generator().manual_seed(seed + 9)
    forced = torch.multinomial(p, rows, replacement=True, generator=generator).t().contiguous()
    accepted = verdicts(p, q, forced, seed)[:, 0]
    chance = 1.0
    for i in range(3):
        chance *= float(torch.minimum(p[i], q[i]).sum())
        assert near((accepted > i).long(), chance)


def test_looked_up_tokens_pass_where_they_are_the_text() -> None:
    p, forced = distributions(4, 6, 3), torch.tensor([[2, 4, 1, 5]])
    for looked_up in itertools.product(range(6), repeat=3):
        draft = Draft.one_hot(torch.tensor([looked_up]), 6)
        same = [a == b for a, b in zip(looked_up, forced[0].tolist(), strict=False)]
        right = same.index(False) if False in same else 3
        for u in (0.0, 0.5, 0.999):
            uniforms = Uniforms(torch.full((1, 3), u), torch.full((1, 1), 0.5, dtype=torch.float64))
            [k, *tokens] = verify(draft, p[None], uniforms, forced)[0].tolist()
            assert (k, tokens[: k + 1]) == (right, forced[0, : right + 1].tolist())


def test_greedily_a_draft_passes_where_its_level_says_the_same() -> None:
    """Also where the verifying level itself would have said something else, be it by rounding."""
    p, q = (torch.nn.functional.one_hot(torch.tensor(ids), 5).float()[None] for ids in ([1, 2, 3], [1, 4]))
    for forced, accepted in (([1, 4, 0], 2), ([1, 2, 3], 1), ([0, 4, 0], 0)):
        given = torch.tensor([forced])
        [k, *tokens] = verify(Draft(given[:, :2], q), p, GREEDY, given)[0].tolist()
        assert (k, tokens[: k + 1]) == (accepted, forced[: accepted + 1])


@pytest.mark.parametrize("seed", range(20))
def test_free_places_are_drawn_as_usual(seed: int) -> None:
    p, q = distributions(4, 6, seed)[None], distributions(3, 6, seed + 50)
    p = (p + 0.1) / 1.6  # so that nothing is impossible
    generator = torch.Generator().manual_seed(seed)
    draft = Draft(torch.multinomial(q, 1, generator=generator).t(), q[None])
    uniforms = Uniforms(torch.rand(1, 3, generator=generator), torch.rand(1, 1).double())
    free = torch.full((1, 4), FREE)
    usual = verify(draft, p, uniforms)
    assert torch.equal(verify(draft, p, uniforms, free), usual)
    free[0, 0] = draft.tokens[0, 0]
    sure = Uniforms(uniforms.tests.clone(), uniforms.last)
    sure.tests[0, 0] = 0
    assert torch.equal(verify(draft, p, sure, free), verify(draft, p, sure))


# Whole rounds, computed exactly


class Taken(Walk):
    """Draws one token only, as it is replaced by the forced one anyway."""

    def draw(self, weights: Tensor) -> Tensor:
        return weights.argmax(-1)


def round_of(stack: Stack, walk: Walk, prompt: Context, most: int, forced: Context = ()) -> Distribution:
    """The distribution of what the first round commits."""
    found: Distribution = {}
    start = stack.save()
    for after, chance in rounds(
        stack, Branching(PLAIN, len(prompt), walk, bool(forced)), prompt, most, forced
    ):
        made = after[len(prompt) :]
        found[made] = found.get(made, 0.0) + chance
    stack.load(start)
    return found


HIERARCHIES: dict[str, Callable[[], tuple[Stack, Context, int]]] = {
    "two": lambda: (two_levels(toy(1), toy(2), 2), PROMPT, 3),
    "three": lambda: (three_levels(toy(1, 2), toy(2, 2), toy(3, 2), (1, 2)), PROMPT, 4),
    "lookup": lambda: (
        three_levels(toy(1, 2), toy(2, 2), None, (2, 2), lookup=NgramLookup()),
        LONGER,
        5,
    ),
    "unwaited": lambda: (unwaited(toy(1, 2), toy(2, 2), toy(3, 2), (1, 3)), LONGER, 6),
    **{
        f"{kind} {shape}": lambda kind=kind, shape=shape: (  # type: ignore[misc]
            tree_over(toy(1, 4), toy(2, 4), SHAPES[shape], kind=kind),
            PROMPT,
            1 + depth_of(SHAPES[shape]),
        )
        for kind in ("sequoia", "specinfer")
        for shape in ("siblings", "fork")
    },
    "tree below": lambda: (tree_below(toy(1, 2), toy(2, 2), toy(3, 2), SHAPES["fork"], 1), PROMPT, 4),
    "captured tree": lambda: (captured_tree_over(toy(1), toy(2), SHAPES["fork"]), LONGER, 3),
    "unwaited tree": lambda: (
        unwaited_tree_below(toy(1, 2), toy(2, 2), toy(3, 2), SHAPES["siblings"], 2),
        LONGER,
        5,
    ),
    "unwaited lookup": lambda: (unwaited(toy(1, 2), toy(2, 2), toy(3, 2), (2, 3), True, 2), LONGER, 6),
}


@pytest.mark.parametrize("name", HIERARCHIES)
def test_over_all_texts_a_round_commits_as_much_as_in_truth(name: str) -> None:
    """Its length and its tokens have the joint law of a round that nobody forces."""
    stack, prompt, longest = HIERARCHIES[name]()
    truth = round_of(stack, Walk(), prompt, 3)
    assert max(map(len, truth)) <= longest
    assert len(set(map(len, truth))) > 1
    model = stack.top.model
    found: Distribution = {}
    for text, mass in exact_distribution(model, PLAIN, longest, prompt).items():  # type: ignore[arg-type]
        for made, chance in round_of(stack, Taken(), prompt, 3, text).items():
            assert made == text[: len(made)]
            found[made] = found.get(made, 0.0) + mass * chance
    assert variation(found, truth) < 1e-9


# Whole answers


def test_an_answer_follows_what_was_said(lab: Lab) -> None:
    """The text begins behind the tokens that an interrupted answer has already."""
    engine, prompt, said = lab.engine(), lab.text(90), [3, 1, 4]
    text = text_of(engine, [*prompt, *said], 30, 1)
    assert tokens_of(engine, Request(prompt, 20, PLAIN, generated=said, forced=text)) == text[:20]


def text_of(engine: Engine, prompt: Sequence[int], n: int, seed: int) -> list[int]:
    return tokens_of(engine, Request(prompt, n, Sampling(1.0, seed=seed)), plain=True)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_answers_with_the_text(lab: Lab, stack: str, planned: bool, settings: str) -> None:
    """Greedily, too, where the text is one that no stack would ever write."""
    gammas = (None, None) if planned else (4, 2)
    engine, prompt = lab.engine(stack, gamma=gammas[0], draft_gamma=gammas[1]), lab.text(90)
    for seed in range(2):
        text = text_of(engine, prompt, 60, seed)
        assert tokens_of(engine, Request(prompt, 40, SETTINGS[settings], forced=text)) == text[:40]
        prompt = [*prompt, *text[:40], 5]


@pytest.mark.parametrize("stack", STACKS)
def test_behind_the_text_an_answer_is_its_own(lab: Lab, stack: str) -> None:
    engine, prompt = lab.engine(stack), lab.text(90)
    text = text_of(engine, prompt, 15, 3)
    made = tokens_of(engine, Request(prompt, 40, forced=text))
    assert made == [*text, *lab.greedy([*prompt, *text], 25)]


@pytest.mark.parametrize("stack", ["streaming", "naive", "lookup"])
def test_along_its_own_greedy_answer_a_stack_makes_the_same_rounds(lab: Lab, stack: str) -> None:
    """Others select chunks by the queries of drafts, of which the rejected ones differ."""
    prompt, found = lab.text(90), []
    for forced in ([], lab.greedy(prompt, 80)):
        events = events_of(lab.engine(stack), Request(prompt, 60, forced=forced))
        rounds = [event for event in events if isinstance(event, Verified) and event.level == "target"]
        found.append([event.accepted for event in rounds])
    assert found[0] == found[1]
    assert any(found[0])


def test_a_text_that_goes_on_behind_the_answer_is_cut() -> None:
    seq = TokenBuffer.of([7, 8], 3, CPU, [1, 2, 3, 4, 5])
    assert seq.forced is not None
    assert seq.forced[0, 2:].tolist() == [1, 2, 3]
    assert TokenBuffer.of([7, 8], 3, CPU).forced is None
    short = TokenBuffer.of([7, 8], 3, CPU, [1])
    ahead = short.fork(2)
    for each in (short, ahead):
        given = each.read_forced(3)
        assert given is not None
        assert given.tolist() == [[1, FREE, FREE]]
    ahead.commit(torch.tensor([[1]]), 1)
    moved = ahead.read_forced(2)
    assert moved is not None
    assert moved.tolist() == [[FREE, FREE]]


def events_of(engine: Engine, request: Request) -> list[Event]:
    """What was verified and said, without times."""
    return [event for event in engine.answer(request) if isinstance(event, Verified | Text)]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    """A target and a draft whose forwards are captured."""
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def captured_engine(
    pair: tuple[Runner, Runner], name: str, executor: Executor, gammas: tuple[int | None, int | None]
) -> Engine:
    options = StackOptions(name, *gammas, budget=SMALL_BUDGET)
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1], options)
    engine.executor = executor
    engine.top.overlap = engine.top.overlap or name == "autoregressive"
    return engine


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("stack", STACKS)
def test_graphs_answer_with_the_text(
    pair: tuple[Runner, Runner], lab: Lab, stack: str, planned: bool, settings: str
) -> None:
    engine = captured_engine(pair, stack, GraphExecutor(), (None, None) if planned else (5, 2))
    prompt = lab.text(90)
    for seed in range(2):
        text = text_of(engine, prompt, 60, seed)
        assert tokens_of(engine, Request(prompt, 50, SETTINGS[settings], forced=text)) == text[:50]
        prompt = [*prompt, *text[:50], 5]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("stack", ["triforce", "retrieval", "naive", "lookup"])
def test_graphs_accept_what_eager_execution_does(
    pair: tuple[Runner, Runner], lab: Lab, stack: str, settings: str
) -> None:
    prompt, found = lab.text(90), []
    for executor in (EagerExecutor(), GraphExecutor()):
        engine = captured_engine(pair, stack, executor, (5, 2))
        text = [*text_of(engine, prompt, 30, 1), *prompt[10:40]]  # likely to a model, and to be looked up
        engine.settle([])
        sampling = Sampling(**{**{n: getattr(SETTINGS[settings], n) for n in Sampling.__slots__}, "seed": 2})
        found.append(events_of(engine, Request(prompt, 50, sampling, forced=text)))
    assert found[0] == found[1]
    assert any(event.accepted for event in found[0] if isinstance(event, Verified))


def test_forced_and_free_answers_do_not_share_graphs(pair: tuple[Runner, Runner], lab: Lab) -> None:
    """A free answer is what it is without forced ones in between."""
    prompt, sampling = lab.text(90), Sampling(0.8, seed=4)
    alone = captured_engine(pair, "triforce", GraphExecutor(), (5, 2))
    mixed = captured_engine(pair, "triforce", GraphExecutor(), (5, 2))
    text = text_of(alone, prompt, 60, 1)
    for engine in (alone, mixed):
        engine.settle([])
    made = tokens_of(alone, Request(prompt, 30, sampling))
    for _ in range(2):
        assert tokens_of(mixed, Request(prompt, 30, sampling, forced=text)) == text[:30]
        mixed.settle([])
        assert tokens_of(mixed, Request(prompt, 30, sampling)) == made
        mixed.settle([])


def passed(engine: Engine, request: Request, level: str) -> float:
    """Accepted tokens of a round, in the mean over an answer."""
    events = [event for event in events_of(engine, request) if isinstance(event, Verified)]
    return statistics.fmean(event.accepted for event in events if event.level == level)


WHOLE = Budget(
    tokens=200, chunk=4, sinks=4, tail=8, stride=16, scratch=24
)  # nothing of the middle's work is in vain


@pytest.fixture(scope="module")
def undecided() -> Lab:
    """A target and a draft with much to choose from."""
    return Lab.of("llama", seed=5, noise=0.5, vocabulary=8, spread=0.5, num_hidden_layers=1)


@pytest.fixture(scope="module")
def texts(undecided: Lab) -> list[list[int]]:
    """Answers of plain decoding, by which those of stacks are forced."""
    engine = undecided.engine("autoregressive")
    return [text_of(engine, undecided.text(60), 40, seed + ANSWERS) for seed in range(ANSWERS)]


@pytest.mark.parametrize(
    ("stack", "level", "budget"),
    [
        ("naive", "target", SMALL_BUDGET),
        ("triforce", "target", SMALL_BUDGET),
        ("triforce", "retrieval", WHOLE),
    ],
)
def test_over_many_texts_as_much_is_accepted_as_in_free_answers(
    undecided: Lab, texts: list[list[int]], stack: str, level: str, budget: Budget
) -> None:
    engine, prompt = undecided.engine(stack, budget=budget), undecided.text(60)
    free, forced = [], []
    for seed, text in enumerate(texts):
        free.append(passed(engine, Request(prompt, 30, Sampling(1.0, seed=seed)), level))
        request = Request(prompt, 30, Sampling(1.0, seed=seed + 2 * ANSWERS), forced=text)
        forced.append(passed(engine, request, level))
    error = ((statistics.variance(free) + statistics.variance(forced)) / ANSWERS) ** 0.5
    assert abs(statistics.fmean(free) - statistics.fmean(forced)) < 4 * error
    assert 4 * error < statistics.fmean(free) / 3  # otherwise more answers are needed


# The same luck for all stacks


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_by_given_numbers_as_much_is_accepted(undecided: Lab, texts: list[list[int]], stack: str) -> None:
    engine, prompt = undecided.engine(stack, budget=WHOLE), undecided.text(60)
    drawn, given = [], []
    for number, text in enumerate(texts):
        request = Request(prompt, 30, Sampling(1.0, seed=number), forced=text)
        drawn.append(passed(engine, request, "target"))
        given.append(passed(engine, replace(request, luck=number), "target"))
    error = ((statistics.variance(drawn) + statistics.variance(given)) / ANSWERS) ** 0.5
    assert abs(statistics.fmean(drawn) - statistics.fmean(given)) < 4 * error


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_by_the_same_numbers_the_same_is_accepted(undecided: Lab, texts: list[list[int]], stack: str) -> None:
    """Whatever else was drawn; by other numbers something else is."""
    engine, prompt, text = undecided.engine(stack, budget=WHOLE), undecided.text(60), texts[0]
    found = []
    for seed, number in ((1, 7), (2, 7), (1, 8)):
        request = Request(prompt, 30, Sampling(1.0, seed=seed), forced=text, luck=number)
        found.append([event for event in events_of(engine, request) if isinstance(event, Verified)])
    accepted = [[(event.level, event.accepted) for event in each] for each in found]
    assert accepted[0] == accepted[1]
    assert accepted[0] != accepted[2]


def test_drafts_of_any_length_pass_at_the_same_places(undecided: Lab, texts: list[list[int]]) -> None:
    prompt, verdicts = undecided.text(60), []
    for gamma in (2, 6):
        engine, at, passes = undecided.engine("naive", gamma=gamma), 0, {}
        for event in events_of(engine, Request(prompt, 30, PLAIN, forced=texts[1], luck=3)):
            if isinstance(event, Verified):
                for i in range(min(event.accepted + 1, event.proposed)):
                    passes[at + i] = i < event.accepted
                at += event.accepted + 1
        verdicts.append(passes)
    tested = verdicts[0].keys() & verdicts[1].keys()
    assert {verdicts[0][place] for place in tested} == {False, True}
    assert all(verdicts[0][place] == verdicts[1][place] for place in tested)


def test_each_level_has_numbers_of_its_own() -> None:
    top = TokenBuffer.of([7, 8], 5, CPU, [1, 2], luck=1)
    levels = [top, top.fork(), top.fork().fork(2), top.fork().fork().fork(), TokenBuffer.of([7], 5, CPU)]
    numbers = [each.read_luck(3) for each in levels]
    assert numbers[4] is None
    first, second, third, fourth = (each.tolist() for each in numbers if each is not None)
    assert len({*map(str, (first, second, third))}) == 3
    assert third == fourth  # more levels than any stack has
