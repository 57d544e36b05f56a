"""Perplexity of a stream that is forgotten as it goes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from support.labs import Lab
from torch.nn.functional import cross_entropy

from triforce_chat.engine.cache.evicting import EvictingCache
from triforce_chat.engine.cache.eviction import EVICTIONS
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.errors import UsageError
from triforce_chat.lab.evaluation import eviction as module
from triforce_chat.lab.evaluation.eviction import RULES, Plan, continuations, fed, rule_of, streamed

KEEP = 296  # tokens: a window, its sinks and a step of 37


def cache_of(lab: Lab, name: str, keep: int = KEEP) -> EvictingCache:
    return EvictingCache(lab.target.shape, rule_of(name, keep), lab.target.frequencies, 0)


@pytest.mark.parametrize("name", ["window", *EVICTIONS])
def test_losses_are_those_of_decoding_token_by_token(lab: Lab, name: str) -> None:
    tokens = torch.tensor(lab.text(420))
    found = fed(lab.target, tokens, cache_of(lab, name))
    cache, alone = cache_of(lab, name), []
    for at in range(len(tokens) - 1):
        cache.make_room()
        logits = lab.target(tokens[at : at + 1][None], cache, 1)[0]
        alone.append(cross_entropy(logits, tokens[at + 1 : at + 2]))
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-3, atol=1e-3)
    stock = cross_entropy(lab.logits(tokens.tolist())[:-1], tokens[1:], reduction="none")
    torch.testing.assert_close(found[: KEEP - 40], stock[: KEEP - 40], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found[-20:], stock[-20:], atol=1e-3)


def test_a_window_has_no_sinks(lab: Lab) -> None:
    tokens = torch.tensor(lab.text(420))
    window, streaming = cache_of(lab, "window"), cache_of(lab, "streaming")
    for cache in (window, streaming):
        fed(lab.target, tokens, cache)
    first = tokens.new_tensor(range(16))
    values = [cache.slots(0)[1][:, first].clone() for cache in (window, streaming)]
    fresh = cache_of(lab, "streaming")
    lab.target.prefill(tokens[:30], fresh)
    torch.testing.assert_close(values[1], fresh.slots(0)[1][:, first])
    assert not torch.allclose(values[0], values[1])


def test_recomputation_reads_a_window_anew(lab: Lab) -> None:
    ids = lab.text(900)
    plan = Plan(KEEP, len(ids), RULES, sample=3)
    places, nats = module.recomputed(lab.target, ids, plan)
    step = rule_of("streaming", KEEP).step
    assert places.tolist() == [
        place for end in range(KEEP, 901, 3 * step) for place in range(end - step, end)
    ]
    end = KEEP + 3 * step
    window = torch.tensor(ids[end - KEEP : end])
    stock = cross_entropy(lab.logits(window.tolist())[-step - 1 : -1], window[-step:], reduction="none")
    torch.testing.assert_close(nats[step : 2 * step], stock, rtol=1e-3, atol=1e-3)


def test_bands_of_positions(lab: Lab) -> None:
    ids = lab.text(2400)
    plan = Plan(KEEP, len(ids), RULES, example=0)
    for name in ("streaming", "recomputation"):
        found = streamed(lab.target, ids, name, plan)
        assert [part.end for part in found.parts][-2:] == [4 * KEEP, 2400]
        assert sum(part.tokens for part in found.parts) == found.tokens
        assert found.ms_per_token > 0


def test_continuations_of_a_prompt_with_a_fifth_of_it(lab: Lab) -> None:
    ids = lab.text(1600)
    plan = Plan(KEEP, len(ids), ("window", "h2o", "recomputation"), example=1500, continued=12)
    made = continuations(lab.target, ids, plan)
    assert list(made) == ["full", "window", "h2o"]
    assert made["full"] == lab.greedy(ids[:1500], 12)
    assert made["window"] != made["full"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", RULES)
def test_a_gpu_finds_what_a_cpu_finds(name: str) -> None:
    lab, ids = Lab.of(head_dim=16), Lab.of(head_dim=16).text(1200)
    there = Runner(deepcopy(lab.stock).to("cuda"))
    plan = Plan(KEEP, len(ids), RULES, example=0)
    mine, other = (streamed(each, ids, name, plan) for each in (lab.target, there))
    assert other.perplexity == pytest.approx(mine.perplexity, rel=1e-3)
    assert other.ms_per_token > 0
    made = [
        continuations(each, ids, Plan(KEEP, 1200, (name,), example=1500, continued=12))
        for each in (lab.target, there)
    ]
    assert made[0] == made[1]


def test_rules() -> None:
    assert replace(rule_of("window", 400), sinks=16) == rule_of("streaming", 400)
    with pytest.raises(UsageError, match="--keep 64 is too small"):
        rule_of("window", 64)
