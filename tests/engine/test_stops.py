"""Where an answer ends: end tokens in every role, stop strings, token limits, the end of the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.labs import SMALL_BUDGET, Lab, spell

from triforce_chat.chat.events import Tally
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Finished, Text, Verified
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.errors import DoesNotFit, ModelError, UsageError

LONG = 40
STACKS = ("triforce", "lookup", "naive", "streaming", "autoregressive")


def tally(engine: Engine, request: Request) -> Tally:
    result = Tally()
    for event in engine.answer(request):
        result.add(event)
    assert result.finished is not None
    assert result.finished.completion_tokens == len(result.token_ids)
    assert engine.cached == [*request.prompt, *result.token_ids][:-1]
    assert engine.full.length == len(engine.cached)
    return result


def reason(result: Tally) -> str:
    assert isinstance(result.finished, Finished)
    return result.finished.reason


def roles(engine: Engine, prompt: list[int]) -> list[str]:
    """In which role each token of the uncut answer was committed."""
    found: list[str] = []
    verdict = None
    for event in engine.answer(Request(prompt, LONG)):
        if isinstance(event, Verified) and event.level == "target":
            verdict = event
        if isinstance(event, Text):
            assert verdict is not None
            last = "recovered" if verdict.accepted < verdict.proposed else "bonus"
            found += ["accepted"] * verdict.accepted + [last]
    return found[:LONG]


@pytest.mark.parametrize("stack", STACKS)
def test_the_first_end_token_ends_the_answer_in_whatever_role(lab: Lab, stack: str) -> None:
    prompt = lab.text(40, seed=4)
    made, played = lab.greedy(prompt, LONG), roles(lab.engine(stack), prompt)
    engine, tried = lab.engine(stack), set()
    for token in sorted(set(made), key=made.index):
        at = made.index(token)
        tried.add(played[at])
        engine.eos_ids = frozenset({token, 1_000})
        result = tally(engine, Request(prompt, LONG))
        assert result.token_ids == made[: at + 1]
        assert result.text == spell(made[:at])  # an end token has no text
        assert reason(result) == "stop"
    assert tried >= ({"accepted", "recovered"} if stack in ("triforce", "streaming") else set(played[:1]))


def test_an_end_token_as_a_bonus(lab: Lab) -> None:
    """A draft that is the target is always accepted, so every fifth token is a bonus."""
    lab = Lab(lab.stock, lab.target, lab.target)
    prompt = lab.text(40, seed=4)
    made, played = lab.greedy(prompt, LONG), roles(lab.engine("naive"), prompt)
    at = next(i for i, role in enumerate(played) if role == "bonus" and made[i] not in made[:i])
    result = tally(lab.engine("naive", eos_ids=frozenset({made[at]})), Request(prompt, LONG))
    assert result.token_ids == made[: at + 1]
    assert reason(result) == "stop"


def test_an_answer_goes_on_behind_an_end_token_of_the_last_turn(lab: Lab) -> None:
    prompt = lab.text(30)
    made = lab.greedy(prompt, 8)
    engine = lab.engine(eos_ids=frozenset({made[5]}))
    first = tally(engine, Request(prompt, LONG)).token_ids
    follow = [*prompt, *first, 7, 8]
    engine.eos_ids = frozenset()
    assert tally(engine, Request(follow, 9)).token_ids == lab.greedy(follow, 9)


@pytest.mark.parametrize("stack", STACKS)
def test_every_token_limit_is_met_exactly(lab: Lab, stack: str) -> None:
    engine, prompt = lab.engine(stack), lab.text(50)
    made = lab.greedy(prompt, 20)
    for most in range(1, 21):
        result = tally(engine, Request(prompt, most))
        assert result.token_ids == made[:most]
        assert result.text == spell(made[:most])
        assert reason(result) == "length"


@pytest.mark.parametrize("most", [0, -3])
def test_nothing_to_make(lab: Lab, most: int) -> None:
    result = tally(lab.engine(), Request(lab.text(20), most))
    assert result.token_ids == []
    assert reason(result) == "length"


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("room", [0, 1, 2, 5, 9])
def test_the_context_is_filled_to_its_last_token(lab: Lab, stack: str, room: int) -> None:
    prompt = lab.text(60)
    result = tally(lab.engine(stack, context=60 + room), Request(prompt, LONG))
    assert result.token_ids == (lab.greedy(prompt, room) if room else [])
    assert reason(result) == "length"


@pytest.mark.parametrize("gammas", [(32, 32), (1, 32), (32, 1)])
def test_the_slack_holds_the_largest_proposals(lab: Lab, gammas: tuple[int, int]) -> None:
    """All that the settings allow, up to the last token of the context."""
    lab = Lab(lab.stock, lab.target, lab.target)  # long proposals need a good draft
    budget = replace(SMALL_BUDGET, scratch=64)
    engine = lab.engine("triforce", context=56, gamma=gammas[0], draft_gamma=gammas[1], budget=budget)
    prompt = lab.text(30)
    assert tally(engine, Request(prompt, 500)).token_ids == lab.greedy(prompt, 26)
    assert engine.full.storage.capacity == 56 + SLACK


@pytest.mark.parametrize("stack", STACKS)
def test_stop_strings_end_an_answer_wherever_they_fall(lab: Lab, stack: str) -> None:
    prompt = lab.text(45, seed=6)
    made = lab.greedy(prompt, LONG)
    text, engine = spell(made), lab.engine(stack)
    for at in range(0, 24, 3):
        stop = text[at : at + 3]
        first = text.index(stop)
        result = tally(engine, Request(prompt, LONG, stop=("never here", stop)))
        assert result.text == text[:first]
        assert result.token_ids == made[: first + 3]
        assert reason(result) == "stop"


def test_what_looked_like_a_stop_string_is_shown_after_all(lab: Lab) -> None:
    prompt = lab.text(45, seed=6)
    text = spell(lab.greedy(prompt, 12))
    for stop in (text[-2:] + "!", text[3:6] + "!"):
        result = tally(lab.engine(), Request(prompt, 12, stop=(stop,)))
        assert result.text == text
        assert reason(result) == "length"


def writing(lab: Lab, text: bytes) -> Engine:
    """An engine that writes one byte of this text per token."""
    engine = lab.engine()
    engine.decode = lambda ids: text[: len(ids)].decode(errors="replace")
    return engine


def test_half_a_character_at_the_limit_is_not_shown_until_it_is_whole(lab: Lab) -> None:
    engine, prompt = writing(lab, "a€€€".encode()), lab.text(20)
    half = tally(engine, Request(prompt, 3))
    assert (half.text, len(half.token_ids), reason(half)) == ("a", 3, "length")
    assert tally(engine, Request(prompt, 4)).text == "a€"
    rest = engine.answer(Request(prompt, 3, generated=half.token_ids))
    assert "".join(event.text for event in rest if isinstance(event, Text)) == "€"


def test_half_a_character_at_the_end_that_the_model_chose_is_shown(lab: Lab) -> None:
    prompt = lab.text(20)
    engine, (first, second) = writing(lab, "€".encode()), lab.greedy(prompt, 2)
    assert second != first
    engine.eos_ids = frozenset({second})
    ended = tally(engine, Request(prompt, 6))
    assert (ended.text, reason(ended)) == ("\ufffd", "stop")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_that_are_no_numbers_end_the_answer(
    lab: Lab, stack: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens stay that were made before."""
    engine, prompt = lab.engine(stack), lab.text(40, seed=3)
    request = Request(prompt, LONG, Sampling(temperature, top_p=0.9, seed=1))
    forward, made = Runner.__call__, list[int]()

    def failing(self: Runner, *given: Any) -> Any:
        logits = forward(self, *given)
        return logits * float("nan") if made and self is engine.target else logits

    def answer() -> None:
        for event in engine.answer(request):
            made.extend(event.token_ids if isinstance(event, Text) else ())

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "__call__", failing)
        with pytest.raises(ModelError, match="no finite scores"):
            answer()
    assert made
    assert engine.cached == [*prompt, *made][:-1]
    assert tally(lab.engine(stack), Request(prompt, 12)).token_ids == lab.greedy(prompt, 12)


def test_more_than_the_context_is_refused_by_the_engine(lab: Lab) -> None:
    engine, prompt = lab.engine(context=50), lab.text(51)
    with pytest.raises(DoesNotFit, match="51 tokens do not fit into the engine's context of 50"):
        next(engine.answer(Request(prompt, 5)))
    with pytest.raises(DoesNotFit, match="51 tokens"):
        engine.prefill(prompt)
    assert engine.cached == []


@pytest.mark.parametrize(
    ("options", "most"), [({"gamma": 64}, 63), ({"draft_gamma": 33}, 32), ({"gamma": 0}, 63)]
)
def test_longer_drafts_than_there_is_room_for_are_refused_by_the_engine(
    lab: Lab, options: dict[str, Any], most: int
) -> None:
    with pytest.raises(UsageError, match=f"must be from 1 to {most} tokens"):
        lab.engine("triforce", **options)
