"""Keys and values of 8 bits with a floating point: rounded once, wherever they lie, and the same for every level."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.labs import SMALL_BUDGET, Lab, perturbed, random_model, spell
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.quantization import FP8, LARGEST_FP8, format_name
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.selection import MeanKey, MinMaxKey
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.engine.together import answer_together

STACKS = ("auto", "triforce", "triforce-int4", "retrieval", "streaming", "naive", "lookup")


@pytest.fixture(scope="module")
def lab() -> Lab:
    torch.manual_seed(0)
    stock = random_model(head_dim=16)
    return Lab(stock, Runner(copy.deepcopy(stock), kv=FP8), Runner(perturbed(stock, 0.1)))


def engine_of(lab: Lab, stack: str, storage: Any = storage_for, **options: Any) -> Engine:
    settings: dict[str, Any] = {"gamma": 6, "draft_gamma": 2, "budget": SMALL_BUDGET, **options}
    return Engine(
        lab.target, 400, TextCodec(spell), lab.draft, StackOptions(stack, **settings), storage=storage
    )


def test_slots_take_a_quarter_of_fp32() -> None:
    shape = Shape(2, 4, 2, 16, torch.float32, torch.device("cpu"), FP8)
    storage = storage_for(shape, 128)
    assert isinstance(storage, KVBuffer)
    assert storage.keys.nbytes + storage.values.nbytes == 128 * shape.bytes_per_token
    assert shape.bytes_per_token * 4 == Shape(2, 4, 2, 16, torch.float32, shape.device).bytes_per_token
    assert format_name(FP8) == "fp8"


def test_numbers_that_are_too_large_become_the_largest() -> None:
    storage = KVBuffer(Shape(1, 1, 1, 4, torch.float32, torch.device("cpu"), FP8), 4)
    given = torch.tensor([1e9, -500.0, 463.0, 0.3]).expand(1, 1, 2, 4)
    view = storage.write(0, 1, given, -given)
    stored = torch.tensor([LARGEST_FP8, -LARGEST_FP8, LARGEST_FP8, 0.3125])
    assert torch.equal(view.keys[0, 0, 1].float(), stored)
    assert torch.equal(view.values[0, 0, 2].float(), -stored)


@pytest.mark.parametrize("policy", [MeanKey(), MinMaxKey()])
def test_chunks_are_scored_by_the_numbers_that_are_kept(policy: Any) -> None:
    keys, queries = torch.randn(2, 5, 8, 16).to(FP8), torch.randn(4, 3, 16)
    assert torch.equal(policy.scores(queries, keys), policy.scores(queries, keys.float()))


@pytest.mark.parametrize("storage", [storage_for, OffloadedKV])
@pytest.mark.parametrize(
    ("stack", "policy"), [*((stack, "mean") for stack in STACKS), ("triforce", "attention")]
)
def test_greedy_answers_are_those_of_plain_decoding(lab: Lab, stack: str, policy: str, storage: Any) -> None:
    engine = engine_of(lab, stack, storage, policy=policy)
    asked = Request(lab.text(160), 45)
    made = tokens_of(engine, asked)
    assert made == tokens_of(engine, asked, plain=True)
    assert made == tokens_of(engine_of(lab, "autoregressive"), asked)


@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
def test_trees_are_those_of_plain_decoding(lab: Lab, stack: str) -> None:
    engine = engine_of(lab, stack, gamma=None, tree=TreeOptions("sequoia", 8, 3))
    asked = Request(lab.text(120), 40)
    assert tokens_of(engine, asked) == tokens_of(engine, asked, plain=True)


def test_the_law_of_a_token_is_that_of_plain_decoding(lab: Lab) -> None:
    """Verified in rows of any number, after rejected drafts: the distribution of every next token.

    What a level draws has the distribution of these logits, for any logits, by enumeration in
    ``test_exact_distributions.py``.
    """
    runner, ids = lab.target, torch.tensor(lab.text(120))

    def logits(sizes: list[int], wrong: int = 0) -> Tensor:
        cache, rows, at, turn = FullCache(runner.shape, 200), [], 0, 0
        while at < len(ids):
            n = min(sizes[turn % len(sizes)], len(ids) - at)
            if wrong:
                runner(ids[at : at + wrong].flip(0)[None], cache, 1)
                cache.truncate(at)
            rows.append(runner(ids[at : at + n][None], cache, n)[0])
            at, turn = at + n, turn + 1
        return torch.cat(rows).softmax(-1)

    plain = logits([1])
    for sizes, wrong in (([120], 0), ([7, 33, 3], 0), ([5], 17)):
        torch.testing.assert_close(logits(sizes, wrong), plain, atol=2e-3, rtol=1e-2)
    exact = Runner(copy.deepcopy(lab.stock))
    unrounded = exact(ids[None], FullCache(exact.shape, 200), 120)[0].softmax(-1)
    assert (unrounded - plain).abs().max() > 1e-2  # and it is that of rounded keys and values


def test_several_questions_after_one_document(lab: Lab) -> None:
    document = lab.text(100)
    asked = [Request([*document, *range(1, 4 + 5 * i)], 20, spans=(DocumentSpan(100),)) for i in range(3)]
    engine, told = engine_of(lab, "naive"), dict[int, list[int]]()
    assert engine.forkable is not None
    for at, event in answer_together(engine, asked, lambda one, request: one.answer(request), 3):
        if at is not None and isinstance(event, Text):
            told.setdefault(at, []).extend(event.token_ids)
    for at, request in enumerate(asked):
        assert told[at] == tokens_of(engine_of(lab, "autoregressive"), request)
