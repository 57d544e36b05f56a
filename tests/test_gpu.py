"""The engine on a CUDA device: the same answers as plain decoding there and as the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import SMALL_BUDGET, perturbed, random_model, spell

from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import greedy_test, sampling_test, tokens_of
from triforce_chat.engine.runner import Runner
from triforce_chat.engine.sampling import Sampling
from triforce_chat.engine.stacks import StackOptions

pytestmark = pytest.mark.gpu

PROMPT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]
STACKS = ("auto", "triforce", "retrieval", "streaming", "naive", "lookup")


def engine_on(device: str, stack: str = "triforce") -> Engine:
    torch.manual_seed(11)
    model = random_model()
    draft = perturbed(model, 0.02)
    options = StackOptions(name=stack, gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
    runners = [Runner(copy.deepcopy(each).to(device)) for each in (model, draft)]
    return Engine(runners[0], 512, frozenset(), spell, runners[1], options)


@pytest.mark.parametrize("stack", STACKS)
def test_greedy_equals_plain_decoding(stack: str) -> None:
    verdict = greedy_test(engine_on("cuda", stack), Request(PROMPT, 120))
    assert verdict.mismatches == 0


def test_greedy_equals_the_cpu() -> None:
    request = Request(PROMPT, 60)
    assert tokens_of(engine_on("cuda"), request) == tokens_of(engine_on("cpu"), request)


@pytest.mark.parametrize("stack", STACKS)
def test_samples_follow_the_targets_law(stack: str) -> None:
    engine = engine_on("cuda", stack)
    test = sampling_test(engine, Request(PROMPT, 100, Sampling(temperature=1.0, top_p=0.9)), range(6))
    assert test.p_value > 1e-4
