"""What an answer's tokens attended to, against stock transformers, and that finding out changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Generator

import pytest
import torch
from support.caches import buffer_of
from support.labs import Lab
from torch import Tensor

from triforce_chat.engine import attribution
from triforce_chat.engine.attribution import AttributionCache, attribute
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Retraced, Text
from triforce_chat.settings.settings import STACKS

PROMPT, SAYS = 90, 13


def said(engine: Engine, request: Request, plain: bool = False) -> list[int]:
    events = engine.answer(request, plain)
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


def returned(steps: Generator[Retraced, None, list[float]]) -> list[float]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[float] = end.value
            return found


def weights(engine: Engine, request: Request, made: list[int]) -> list[float]:
    return returned(engine.attribute(request, made))


@torch.no_grad()
def sharpness(lab: Lab, ids: list[int], first: int, positions: int) -> Tensor:
    """The definition, from the attention matrices of stock transformers: [positions]."""
    stock = copy.deepcopy(lab.stock)
    stock.set_attn_implementation("eager")
    weights = torch.stack(stock(torch.tensor([ids]), output_attentions=True).attentions)  # [L, 1, H, n, n]
    found: Tensor = weights[:, 0, :, first:, :positions].square().sum((0, 1, 2))
    return found


@pytest.mark.parametrize(("rows", "block"), [(32, 4096), (5, 16), (13, 7)])
def test_squares_of_the_softmax(any_lab: Lab, rows: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "ROWS", rows)
    monkeypatch.setattr(attribution, "BLOCK", block)
    engine = any_lab.engine("autoregressive")
    request = Request(any_lab.text(PROMPT), SAYS)
    made = said(engine, request)
    found = torch.tensor(weights(engine, request, made))
    expected = sharpness(any_lab, [*request.prompt, *made[:-1]], PROMPT - 1, PROMPT)
    assert expected.max() > 0.05  # there is something to be seen
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def contents(full: FullCache) -> tuple[Tensor, Tensor, Tensor]:
    buffer = buffer_of(full)
    return buffer.keys, buffer.values, full.queries.data


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_tells_the_same_and_nothing_is_changed(lab: Lab, stack: str) -> None:
    plain, engine = lab.engine("autoregressive"), lab.engine(stack)
    request = Request(lab.text(PROMPT), SAYS)
    made = said(plain, request)
    assert said(engine, request) == made
    full = engine.full
    before = [each.clone() for each in contents(full)]
    state = (full.length, list(full.queries.positions), list(engine.cached), list(engine.prefix.chunks))
    found = weights(engine, request, made)
    assert found == pytest.approx(weights(plain, request, made), rel=1e-3, abs=1e-5)
    assert all(map(torch.equal, before, contents(full)))
    assert state == (full.length, full.queries.positions, engine.cached, engine.prefix.chunks)
    longer = Request([*request.prompt, *made, 3, 5], SAYS)
    assert said(engine, longer) == said(lab.engine("autoregressive"), longer)


def test_a_witness_is_fed_what_the_cache_holds(lab: Lab) -> None:
    """Otherwise the keys that are read are not those of the tokens that ask."""
    engine = lab.engine("autoregressive")
    request = Request(lab.text(PROMPT), SAYS)
    made = said(engine, request)
    tokens = torch.tensor([*request.prompt, *made])
    fed: list[Tensor] = []

    class Comparing(AttributionCache):
        def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
            fed.append(k[0])
            return super().update(layer, q, k, v)

    comparing = Comparing(engine.full, PROMPT - 1, lambda _queries, _keys: None)
    lab.target.prefill(comparing.pending(tokens)[:SAYS], comparing)
    assert comparing.position == comparing.length == PROMPT - 1 + SAYS
    held = buffer_of(engine.full).keys[:, :, PROMPT - 1 : PROMPT - 1 + SAYS]
    torch.testing.assert_close(torch.stack(fed), held, rtol=1e-4, atol=1e-5)
    comparing.judged(1, 0)
    comparing.truncate(5)
    assert (comparing.position, engine.full.length) == (5, PROMPT - 1 + SAYS)


def test_what_was_cached_otherwise_is_read_again(lab: Lab) -> None:
    engine = lab.engine("autoregressive")
    request = Request(lab.text(PROMPT), SAYS)
    made = said(engine, request)
    found = weights(engine, request, made)
    said(engine, Request(lab.text(40, seed=9), 3))
    assert weights(engine, request, made) == pytest.approx(found, rel=1e-3, abs=1e-5)


def test_only_the_prompt_is_told(lab: Lab) -> None:
    engine = lab.engine("autoregressive")
    request = Request(lab.text(PROMPT), SAYS)
    made = said(engine, request)
    tokens = torch.tensor([*request.prompt, *made[:-1]])
    whole = returned(attribute(lab.target, engine.full, tokens, PROMPT - 1, len(tokens)))
    assert len(weights(engine, request, made)) == PROMPT
    assert weights(engine, request, made) == pytest.approx(whole[:PROMPT])
    assert sum(whole[PROMPT:]) > 0


def test_it_tells_how_far_it_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "ROWS", 5)
    engine = lab.engine("autoregressive")
    request = Request(lab.text(PROMPT), SAYS)
    made = said(engine, request)
    assert list(engine.attribute(request, made)) == [Retraced(done, SAYS) for done in (5, 10, 13)]
