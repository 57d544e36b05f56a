"""Greedy answers are those of stock transformers, with every stack, at every length, turn after turn."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from support.labs import SMALL_BUDGET, Lab

from triforce_chat.chat.events import Tally
from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Finished, Prefilled, Rebuilt
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import Builder, StackOptions
from triforce_chat.errors import UsageError

LONG = 42  # more than the budget (24) and several strides (8)


def tally(engine: Engine, prompt: list[int], n: int, plain: bool = False) -> Tally:
    result = Tally()
    for event in engine.answer(Request(prompt, n), plain):
        result.add(event)
    return result


def say(engine: Engine, prompt: list[int], n: int) -> list[int]:
    return tally(engine, prompt, n).token_ids


def test_the_list_of_stacks_is_complete(lab: Lab) -> None:
    engine = lab.engine()
    builder = Builder(lab.target, engine.full, lab.draft, StackOptions(), lambda _: None)
    assert set(builder.makers()) == set(STACKS)


def test_with_smaller_weights_of_its_own_the_middle_level_is_considered_earlier(lab: Lab) -> None:
    engine = lab.engine()
    budget = StackOptions().budget.tokens
    for middle, expected in (("full", 2 * budget), ("int8", budget)):
        options = StackOptions(middle=middle)
        builder = Builder(lab.target, engine.full, lab.draft, options, lambda _: None)
        assert builder.worth_above == expected


def test_tests_of_the_draft_model_count_for_both_levels_that_it_drafts_for(lab: Lab) -> None:
    top = lab.engine("auto").top
    level, draft = top.planner.arms
    assert isinstance(level.drafter, Speculative)
    (below,) = level.drafter.planner.arms
    assert draft.curve is below.curve
    own, hoped = level.drafter.planner, level.forecast(200)
    for _ in range(40):
        draft.curve.learn(4, 4)
    assert level.forecast(200) < hoped
    own.learn(Plan(4, below), 0, 4, 4, 0.001, 0.003)
    assert level.pace() == own.expected_pace > 0
    assert level.spent() == own.spent > 0.003
    assert level.worth_above == 2 * SMALL_BUDGET.tokens


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "no-draft"])
@pytest.mark.parametrize("stack", STACKS)
def test_every_architecture_and_stack(any_lab: Lab, stack: str, draft: bool) -> None:
    if stack == "naive" and not draft:
        with pytest.raises(UsageError, match="needs a draft model"):
            any_lab.engine(stack, draft=False)
        return
    for length in (5, 90):  # below the budget, and far above it
        prompt = any_lab.text(length)
        assert say(any_lab.engine(stack, draft=draft), prompt, LONG) == any_lab.greedy(prompt, LONG)


@pytest.mark.parametrize("policy", ["mean", "minmax", "attention", "h2o", "streaming-h2o"])
@pytest.mark.parametrize("gammas", [(1, 1), (2, 6), (7, 1), (12, 6)])
def test_policies_and_gammas(lab: Lab, policy: str, gammas: tuple[int, int]) -> None:
    prompt = lab.text(70, seed=3)
    engine = lab.engine(gamma=gammas[0], draft_gamma=gammas[1], policy=policy)
    assert say(engine, prompt, LONG) == lab.greedy(prompt, LONG)


@pytest.mark.parametrize("draft", [True, False], ids=["draft", "no-draft"])
@pytest.mark.parametrize("stack", ["auto", "triforce", "retrieval", "streaming", "naive", "lookup"])
def test_planned_numbers(lab: Lab, stack: str, draft: bool) -> None:
    prompt = lab.text(70, seed=3)
    engine = lab.engine(stack, draft=draft or stack == "naive", gamma=None, draft_gamma=None)
    for n in (LONG, 20):
        expected = lab.greedy(prompt, n)
        assert say(engine, prompt, n) == expected
        prompt = [*prompt, *expected, 5]
    assert engine.expected.tokens > 0


@pytest.mark.parametrize("stack", STACKS)
def test_ten_turns_on_one_engine(lab: Lab, stack: str) -> None:
    """Each turn extends the last; the second and the tenth are compared, and a rewind in between."""
    engine, history = lab.engine(stack, context=600), lab.text(20)
    for turn in range(1, 11):
        history = [*history, *lab.text(7 + turn, seed=turn)]
        made = tally(engine, history, 17)
        assert made.prefill is not None
        if turn in (2, 6, 10):
            assert made.token_ids == lab.greedy(history, 17)
            assert made.prefill.cached > 0
        history = history[:-9] if turn == 5 else [*history, *made.token_ids]
    assert say(engine, history[:30], 17) == lab.greedy(history[:30], 17)  # back to an early point


def test_plain_and_speculative_answers_alternate(lab: Lab) -> None:
    engine, prompt = lab.engine(), lab.text(60)
    for n in (30, 12, 45):
        expected = lab.greedy(prompt, n)
        assert tally(engine, prompt, n, plain=True).token_ids == expected
        assert say(engine, prompt, n) == expected
        prompt = [*prompt, *expected[: n // 2], 3]


def test_stacks_change_on_one_engine(lab: Lab) -> None:
    engine, history = lab.engine(), lab.text(40)
    for stack in STACKS:
        engine.restack(StackOptions(stack, gamma=3, draft_gamma=2, budget=SMALL_BUDGET))
        made = say(engine, history, 11)
        assert made == lab.greedy(history, 11)
        history = [*history, *made, 1]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 10, 15, 16, 17, 18, 24, 25, 33])
def test_prompts_around_the_borders_of_prefill_chunks(
    lab: Lab, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 8)
    prompt = lab.text(length, seed=length)
    engine, progress = lab.engine(), []
    for _ in range(2):
        for event in engine.answer(Request(prompt, 9)):
            progress += [(event.done, event.total, event.cached)] if isinstance(event, Prefilled) else []
    steps = [*range(0, length - 1, 8), length - 1]
    assert progress == [(done, length - 1, 0) for done in steps] + [(length - 1,) * 3]
    assert engine.cached == [*prompt, *lab.greedy(prompt, 9)][:-1]


@pytest.mark.parametrize("seed", range(3))
def test_a_prefill_that_is_closed_and_resumed(lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 8)
    engine, prompt = lab.engine(), lab.text(50, seed=seed)
    for stop in (2, 1, 3):
        progress = engine.prefill(prompt[: 20 + 10 * stop])
        for _ in range(stop):
            next(progress)
        progress.close()
    assert engine.cached == prompt[: len(engine.cached)] != []
    assert say(engine, prompt, 20) == lab.greedy(prompt, 20)


@pytest.mark.parametrize("arm", [0, 1, None, "all"])
def test_the_planner_with_forced_arms(
    lab: Lab, arm: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forced(planner: Planner, length: int, n: int, match: int, needed: int) -> Plan:  # noqa: ARG001
        turn = planner.rounds % 3 if arm == "all" else arm
        return Plan(min(n, 3), planner.arms[turn] if turn in (0, 1) else None)

    monkeypatch.setattr(Planner, "_choose", forced)
    prompt = lab.text(80)
    made = tally(lab.engine("auto"), prompt, LONG)
    assert made.token_ids == lab.greedy(prompt, LONG)
    assert ("retrieval" in made.levels) == (arm in (0, "all"))


def test_rebuilds_happen_and_are_reported(lab: Lab) -> None:
    engine, rebuilds = lab.engine(), []
    for event in engine.answer(Request(lab.text(90), LONG)):
        rebuilds += [event] if isinstance(event, Rebuilt) else []
    assert rebuilds[0].reason == "first"
    assert {event.reason for event in rebuilds[1:]} >= {"stride"}
    assert all(b.at > a.at for a, b in itertools.pairwise(rebuilds))
    rewound = tally(engine, lab.text(90)[:60], 9).rebuilds
    assert rewound[0].reason == "rewind"


def test_a_cache_without_room_waits_for_its_next_build(lab: Lab) -> None:
    engine, prompt = lab.engine(budget=replace(SMALL_BUDGET, stride=4, scratch=2), gamma=9), lab.text(90)
    made = tally(engine, prompt, LONG)
    assert made.token_ids == lab.greedy(prompt, LONG)
    assert made.levels["retrieval"].rounds > 0
    assert len(made.rebuilds) > 3


@pytest.mark.parametrize("draft", [True, False])
def test_speculation_does_speculate(lab: Lab, draft: bool) -> None:
    made = tally(lab.engine(draft=draft), lab.text(90), LONG)
    assert made.rounds < LONG
    assert made.levels["target"].acceptance is not None
    assert made.levels["target"].acceptance > 0.3
    assert made.levels["retrieval"].rounds > 0


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "streaming"])
def test_a_retrieval_cache_that_holds_everything_is_the_target(lab: Lab, stack: str) -> None:
    """Then every proposal of the middle is right, at every length and across rebuilds and turns."""
    budget = Budget(tokens=200, chunk=4, sinks=4, tail=8, stride=16, scratch=24)
    engine, prompt = lab.engine(stack, budget=budget), lab.text(50)
    for _ in range(2):
        made = tally(engine, prompt, LONG)
        assert made.levels["target"].acceptance == 1
        assert len(made.rebuilds) >= 2
        prompt = [*prompt, *made.token_ids, *lab.text(9)]


def test_a_draft_that_is_the_target_is_never_wrong(lab: Lab) -> None:
    """The streaming window holds the whole text here, so its positions are the true ones."""
    lab = Lab(lab.stock, lab.target, lab.target)
    made = tally(lab.engine("naive"), lab.text(60), 40)
    assert made.levels["target"].acceptance == 1
    assert made.rounds == 8


def test_the_tokens_of_an_answer_are_counted(lab: Lab) -> None:
    made = tally(lab.engine(), lab.text(40), 25)
    done = made.finished
    assert isinstance(done, Finished)
    assert (done.reason, done.prompt_tokens, done.completion_tokens) == ("length", 40, 25)
    target = made.levels["target"]
    assert sum(level.accepted for level in [target]) + target.rounds >= 25
    assert 0 <= done.prefill_s <= done.first_token_s <= done.prefill_s + done.decode_s
