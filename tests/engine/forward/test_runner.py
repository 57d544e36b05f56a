"""A runner's ids and logits where the draft knows only some of its target's tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.labs import Lab, random_model
from support.reduced_drafts import reduced, with_reduced_draft
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.subset import Subset
from triforce_chat.engine.sampling.options import Sampling

KNOWN = [1, 4, 5, 9, 20, 21, 33, 46]
WIDE = 48
MANY = [token for token in range(WIDE) if token % 4 != 3]
PROMPT = [4, 1, 46, 33, 5, 5, 20, 9, 21]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return random_model(vocabulary=WIDE)


def logits_of(runner: Runner, ids: list[int]) -> Tensor:
    return runner(torch.tensor([ids]), FullCache(runner.shape, len(ids)), len(ids))[0]


def test_known_tokens_have_the_targets_ids(model: Any) -> None:
    few = Runner(reduced(model, KNOWN), WIDE, target_ids=torch.tensor(KNOWN))
    found, expected = logits_of(few, PROMPT), logits_of(Runner(copy.deepcopy(model)), PROMPT)
    assert found.shape == (len(PROMPT), WIDE)
    torch.testing.assert_close(found[:, KNOWN], expected[:, KNOWN])
    rest = [token for token in range(WIDE) if token not in KNOWN]
    assert torch.isneginf(found[:, rest]).all()


def test_all_other_tokens_are_read_as_one(model: Any) -> None:
    few = Runner(reduced(model, KNOWN), WIDE, target_ids=torch.tensor(KNOWN))
    assert few.embedded(torch.tensor([0, 47, *KNOWN])).tolist() == [8, 8, *range(8)]
    one, other, known = (logits_of(few, [*PROMPT, token, 4])[-1, KNOWN] for token in (0, 47, 20))
    assert torch.equal(one, other)
    assert not torch.allclose(one, known)


def test_a_prefill_takes_the_targets_ids(model: Any) -> None:
    few = Runner(reduced(model, KNOWN), WIDE, target_ids=torch.tensor(KNOWN))
    ids, cache = [*PROMPT, 47, 0, 9], FullCache(few.shape, 12)
    few.prefill(torch.tensor(ids[:-1]), cache)
    last = few(torch.tensor([ids[-1:]]), cache, 1)[0, -1]
    torch.testing.assert_close(last, logits_of(few, ids)[-1])


def test_a_subset_in_any_order() -> None:
    subset = Subset(torch.tensor([5, 2]), 7)
    wide = subset.widened(torch.tensor([[1.0, 2.0, 3.0]]))
    assert wide.tolist() == [[-torch.inf] * 2 + [2.0] + [-torch.inf] * 2 + [1.0] + [-torch.inf]]
    assert subset.embedded(torch.tensor([2, 5, 6])).tolist() == [1, 0, 2]


def test_without_a_subset_ids_and_logits_are_the_models(model: Any) -> None:
    plain = Runner(copy.deepcopy(model))
    ids, logits = torch.tensor(PROMPT), torch.zeros(2, WIDE)
    assert plain.subset is None
    assert plain.embedded(ids) is ids
    assert plain.widened(logits) is logits


def answer(engine: Engine, prompt: list[int], n: int, **sampling: Any) -> tuple[list[int], list[Verified]]:
    events = [*engine.answer(Request(prompt, n, Sampling(**sampling)))]
    ids = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    return ids, [event for event in events if isinstance(event, Verified)]


@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming", "auto"])
def test_greedy_answers_are_those_of_plain_decoding(lab: Lab, stack: str) -> None:
    few = with_reduced_draft(lab, MANY)
    for length in (9, 90):
        prompt = lab.text(length, seed=2)
        said, verified = answer(few.engine(stack), prompt, 42)
        assert said == lab.greedy(prompt, 42)
        assert sum(event.proposed for event in verified) > 0


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_what_such_a_draft_proposes_is_accepted(lab: Lab, stack: str) -> None:
    level = "retrieval" if stack == "triforce" else "target"
    accepted = []
    for known in (MANY, [WIDE - 1]):
        few, count = with_reduced_draft(lab, known, noise=0.05), 0
        for seed in range(4):
            _, verified = answer(few.engine(stack), lab.text(60, seed), 42)
            count += sum(event.accepted for event in verified if event.level == level)
        accepted.append(count)
    assert accepted[0] > accepted[1] + 20


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_sampled_answers_go_beyond_what_the_draft_knows(lab: Lab, stack: str) -> None:
    few, prompt = with_reduced_draft(lab, KNOWN), lab.text(30)
    said = [
        token
        for seed in range(8)
        for token in answer(few.engine(stack), prompt, 30, temperature=1.0, seed=seed)[0]
    ]
    beyond = [token not in KNOWN for token in said]
    assert 0.5 < sum(beyond) / len(beyond) < 1
