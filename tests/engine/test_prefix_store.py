"""Memory that runs out in the middle of a forward: what was said stands, and nothing in the caches is wrong."""

from __future__ import annotations

import pytest
import torch
from support.labs import Lab
from support.oom_models import starving

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.settings.settings import STACKS

LONG = 24  # tokens of an answer
CHUNK = 32  # tokens of a prefill chunk; the prompt has three of them and a remnant
BY_THE_CLOCK = {"auto"}  # what it does next, and so how many forwards there are, is not known beforehand


def spoken(engine: Engine, request: Request, into: list[int] | None = None) -> list[int]:
    """The answer's tokens; ``into`` has them as they come, whatever comes then."""
    said = [] if into is None else into
    for event in engine.answer(request):
        said += event.token_ids if isinstance(event, Text) else ()
    return said


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", CHUNK)


@pytest.fixture(scope="module")
def prompt(lab: Lab) -> list[int]:
    return lab.text(100)


@pytest.fixture(scope="module")
def expected(lab: Lab, prompt: list[int]) -> list[int]:
    return lab.greedy(prompt, LONG)


@pytest.mark.parametrize("forwards", [0, 2, 3, 4, 9])
@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack not in BY_THE_CLOCK])
def test_the_next_answer_is_right(
    lab: Lab, prompt: list[int], expected: list[int], stack: str, forwards: int
) -> None:
    engine = lab.engine(stack)
    with starving(lab.target.model, forwards) as count, pytest.raises(torch.OutOfMemoryError):
        spoken(engine, Request(prompt, LONG))
    assert count[0] == forwards + 1
    assert engine.full.length == len(engine.cached) >= min(forwards * CHUNK, 96)
    assert engine.cached == [*prompt, *expected][: len(engine.cached)]
    assert spoken(engine, Request(prompt, LONG)) == expected


@pytest.mark.parametrize("forwards", [0, 1, 7])
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
def test_a_draft_that_starves(
    lab: Lab, prompt: list[int], expected: list[int], stack: str, forwards: int
) -> None:
    engine = lab.engine(stack)
    with starving(lab.draft.model, forwards, MemoryError()) as count, pytest.raises(MemoryError):
        spoken(engine, Request(prompt, LONG))
    assert count[0] == forwards + 1
    assert engine.full.length == len(engine.cached)
    assert spoken(engine, Request(prompt, LONG)) == expected


@pytest.mark.parametrize("stack", ["autoregressive", "retrieval", "lookup"])
def test_what_was_said_before_stands(lab: Lab, prompt: list[int], expected: list[int], stack: str) -> None:
    engine, said = lab.engine(stack), list[int]()
    with starving(lab.target.model, 9), pytest.raises(torch.OutOfMemoryError):
        spoken(engine, Request(prompt, LONG), into=said)
    assert 0 < len(said) < LONG
    assert said == expected[: len(said)]
    assert engine.cached == [*prompt, *said][:-1]
    assert spoken(engine, Request(prompt, LONG - len(said), generated=said)) == expected[len(said) :]
